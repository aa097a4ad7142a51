"""Algebra on named tensors.

A model, an update and a basis are all ``Params``: a dict from name to tensor. Functions here return new tensors and
leave their arguments alone, except where the name says otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Params = dict[str, Tensor]


def check_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor], where: str) -> None:
    """Raise ``ValueError`` unless both have the same names, shapes and dtypes."""
    if a.keys() != b.keys():
        raise ValueError(f"{where}: names differ: {sorted(a.keys() ^ b.keys())}")
    for name, tensor in a.items():
        if tensor.shape != b[name].shape or tensor.dtype != b[name].dtype:
            raise ValueError(
                f"{where}: {name} is {tuple(b[name].shape)} {b[name].dtype}, "
                f"expected {tuple(tensor.shape)} {tensor.dtype}"
            )


def clone(a: Mapping[str, Tensor]) -> Params:
    """A deep copy without gradients."""
    return {name: tensor.detach().clone() for name, tensor in a.items()}


def zeros_like(a: Mapping[str, Tensor]) -> Params:
    """Zeros of the same names, shapes and dtypes."""
    return {name: torch.zeros_like(tensor) for name, tensor in a.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """``a + scale·b``; both must have the same names."""
    check_same(a, b, "tree.add")
    return {name: torch.add(tensor, b[name], alpha=scale) for name, tensor in a.items()}


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """``a − b``."""
    return add(a, b, -1.0)


def scale(a: Mapping[str, Tensor], factor: float) -> Params:
    """``factor·a``."""
    return {name: tensor * factor for name, tensor in a.items()}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str] | None = None) -> float:
    """Inner product over ``names`` (all of ``a`` by default), accumulated in float64.

    float64 because Lethe's branch (Eq. 10) hangs on the sign, and the terms cancel. Summed by NumPy, whose result does
    not depend on the number of threads.
    """
    chosen = a.keys() if names is None else names
    return sum(float(np.multiply(_float64(a[n]), _float64(b[n])).sum()) for n in chosen)


def _float64(tensor: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().cpu().double().numpy()
    return array


def norm(a: Mapping[str, Tensor], names: Iterable[str] | None = None) -> float:
    """Euclidean norm over ``names`` (all by default), accumulated in float64."""
    return float(dot(a, a, names) ** 0.5)


def is_finite(a: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds NaN or an infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in a.values())


def count(a: Mapping[str, Tensor]) -> int:
    """Number of scalars."""
    return sum(tensor.numel() for tensor in a.values())


def n_bytes(a: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors as they travel: elements times element size."""
    return sum(tensor.numel() * tensor.element_size() for tensor in a.values())


def digest(a: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in name order: equal digests mean bit-equal trees."""
    total = hashlib.sha256()
    for name in sorted(a):
        tensor = a[name].detach().cpu().contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
