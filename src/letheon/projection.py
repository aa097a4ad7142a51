"""Orthogonal complements of a few named-tensor vectors, through their Gram matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from letheon import tree
from letheon.tree import Params

TOLERANCE = 1e-12
"""Eigenvalues of the Gram matrix of unit rows below this share of the largest count as zero: cosines below 1e-6."""
SPANNED = 1e-6
"""What is left of a vector below this share of its length is rounding: float32 has 6e-8 for each entry."""


def gram(rows: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """``(k, k)`` float64: the inner products of k vectors. One tensor of all rows is in float64 at a time."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for name in rows[0]:
        columns = [{name: row[name].double()} for row in rows]
        for i, first in enumerate(columns):
            for j in range(i + 1):
                total[i, j] += tree.dot(first, columns[j])
    return total + total.tril(-1).T


def complement(vector: Mapping[str, Tensor], rows: Sequence[Mapping[str, Tensor]]) -> Params:
    """What is left of ``vector`` v across all ``rows`` G: v − Gᵀ(GGᵀ)⁺Gv, in float64.

    Rows are scaled to length one first, so that the tolerance of the pseudo-inverse is relative to each of them:
    neither small vectors nor one small vector among large ones escape it. Rows of length zero span nothing.
    """
    products = gram([vector, *rows])
    lengths = products.diagonal()[1:].sqrt()
    used = lengths.nonzero().flatten()
    left = {name: tensor.double() for name, tensor in vector.items()}
    if not len(used):
        return left
    inverse = lengths[used].reciprocal()
    values, vectors = torch.linalg.eigh(products[1:, 1:][used][:, used] * inverse * inverse[:, None])
    kept = values > TOLERANCE * values[-1]
    # Not by the pseudo-inverse itself: its rounding would be multiplied by the condition number once more.
    along = vectors[:, kept] @ ((vectors[:, kept].T @ (products[1:, 0][used] * inverse)) / values[kept])
    for row, share in zip(used.tolist(), (along * inverse).tolist(), strict=True):
        left = {name: torch.sub(tensor, rows[row][name], alpha=share) for name, tensor in left.items()}
    return left


def turned(vector: Mapping[str, Tensor], rows: Sequence[Mapping[str, Tensor]]) -> Params | None:
    """``vector`` turned out of the span of ``rows``, as long as it was; None if the span holds all of it.

    A vector of length zero stays what it is.
    """
    left = complement(vector, rows)
    before, after = tree.norm(vector), tree.norm(left)
    if before == 0.0:
        return tree.zeros_like(vector)
    if after <= SPANNED * before:
        return None
    return {name: (tensor * (before / after)).to(vector[name].dtype) for name, tensor in left.items()}
