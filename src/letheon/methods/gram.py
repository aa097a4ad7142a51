"""The algebra of a ridge head: what samples add to it and take from it, exactly; no clients, no rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from letheon.errors import MethodError, RequestError
from letheon.tree import Params

GRAM, MOMENT = "ridge/gram", "ridge/moment"
INVERSE = "ridge/inverse"
ROUNDING = 1e-9
"""A smallest eigenvalue below zero by less than this, as a share of the trace or of 1, is rounding."""


def with_constant(features: Tensor) -> Tensor:
    """Φ, ``(n, d + 1)`` float64: features ``(n, d)`` and the constant 1."""
    return F.pad(features.double(), (0, 1), value=1.0)


def moment_of(phi: Tensor, targets: Tensor, classes: int) -> Tensor:
    """B = Σ φyᵀ of ``(n, d + 1)`` Φ and ``(n,)`` labels."""
    return phi.T @ F.one_hot(targets, classes).double()


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """All that a ridge head needs to know of a set of samples; float64.

    The last feature is the constant 1, whose weights are the bias: the last row of ``moment`` counts the samples of
    each class.

    Attributes:
        gram: A = Σ φφᵀ, ``(d + 1, d + 1)``.
        moment: B = Σ φyᵀ with one-hot y, ``(d + 1, classes)``.
    """

    gram: Tensor
    moment: Tensor

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, classes: int) -> Self:
        """Of ``(n, d)`` features and ``(n,)`` labels."""
        phi = with_constant(features)
        return cls(phi.T @ phi, moment_of(phi, targets, classes))

    @classmethod
    def none(cls, features: int, classes: int) -> Self:
        """Of no samples."""
        size = features + 1
        return cls(torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, classes, dtype=torch.float64))

    @property
    def memory(self) -> Params:
        """As the server keeps it."""
        return {GRAM: self.gram, MOMENT: self.moment}

    def added(self, other: Statistics) -> Statistics:
        """Of both sets together."""
        return Statistics(self.gram + other.gram, self.moment + other.moment)

    def deleted(self, other: Statistics) -> Statistics:
        """Of this set without ``other``, which must be part of it.

        Two signs of samples that were never added are looked for: a class with fewer than no samples, and a matrix A
        that is not positive semidefinite any more. Without the samples themselves there is no proof that they were.

        Raises:
            RequestError: ``other`` was never added.
        """
        left = Statistics(self.gram - other.gram, self.moment - other.moment)
        lowest = float(torch.linalg.eigvalsh(left.gram)[0])
        _demand_added(left.moment, lowest, least=-ROUNDING * float(self.gram.trace()), of="A")
        return left

    def solve(self, penalty: float) -> Tensor:
        """W = (A + λI)⁻¹B, ``(d + 1, classes)``, by Cholesky; the bias is penalised like all other weights."""
        regular = self.gram + penalty * torch.eye(len(self.gram), dtype=torch.float64)
        weights: Tensor = torch.cholesky_solve(self.moment, torch.linalg.cholesky(regular))
        return weights


@dataclass(frozen=True, slots=True, eq=False)
class Inverse:
    """What a server keeps that deletes by the Woodbury identity, in place of A; float64.

    Attributes:
        inverse: P = (A + λI)⁻¹, ``(d + 1, d + 1)``.
        moment: B, ``(d + 1, classes)``.
    """

    inverse: Tensor
    moment: Tensor

    @classmethod
    def of(cls, statistics: Statistics, penalty: float) -> Self:
        """Of the samples that ``statistics`` are of; the only factorisation."""
        regular = statistics.gram + penalty * torch.eye(len(statistics.gram), dtype=torch.float64)
        # Contiguous, as it comes back from a file: products of other strides differ in the last bit.
        return cls(torch.cholesky_inverse(torch.linalg.cholesky(regular)).contiguous(), statistics.moment)

    @property
    def memory(self) -> Params:
        """As the server keeps it."""
        return {INVERSE: self.inverse, MOMENT: self.moment}

    def deleted(self, factor: Tensor, moment: Tensor) -> Inverse:
        """Without the samples whose A is RᵀR, ``factor`` R of ``(m, d + 1)``, and whose B is ``moment``.

        What was never added shows in a class with fewer than no samples, or in A + λI that is not positive definite
        any more. A itself is not there to be looked at, so up to λ of it goes unnoticed that ``Statistics`` refuses.

        Raises:
            RequestError: the samples were never added.
            MethodError: in some direction they make up all but λ of A, and λ is too small next to them to be left over.
        """
        left = self.moment - moment
        small = torch.eye(len(factor), dtype=torch.float64) - factor @ self.inverse @ factor.T
        lowest = float(torch.linalg.eigvalsh(small)[0]) if len(factor) else 1.0
        _demand_added(left, lowest, least=-ROUNDING, of="I − RPRᵀ")
        if lowest < ROUNDING:
            raise MethodError(
                f"ridge: without these samples too little is left to update the inverse (an eigenvalue of I − RPRᵀ of "
                f"{lowest:.3g}); train without solver = 'woodbury', or with a larger penalty"
            )
        found = woodbury(self.inverse, factor, -1)
        return Inverse((found + found.T) / 2, left)  # symmetric, or rounding would grow from one request to the next

    def solve(self, penalty: float) -> Tensor:
        """W = PB, ``(d + 1, classes)``; the penalty is in P already."""
        return self.inverse @ self.moment


def _demand_added(moment: Tensor, lowest: float, *, least: float, of: str) -> None:
    """Refuse what would leave a class with fewer than no samples, or an eigenvalue below ``least``."""
    short = (moment[-1] < -0.5).nonzero().flatten().tolist()
    if short or lowest < least:
        what = f"more samples of class {short[0]} than there are" if short else f"an eigenvalue of {of} of {lowest:.3g}"
        raise RequestError(
            f"ridge: the data to delete were never added (it would leave {what}); "
            "delete what the statistics were gathered from, on the same extractor"
        )


def root(features: Tensor) -> Tensor:
    """R of ``(min(n, d + 1), d + 1)`` with RᵀR = ΦᵀΦ: ΣVᵀ of Φ = UΣVᵀ, each row with its largest entry positive.

    It is a function of ΦᵀΦ alone, as long as no two singular values but 0 are equal: U and the signs, which are not,
    stay behind. The R of Φ = QR is no such function: where first features are 0 for all samples, as ReLU leaves them,
    its first rows are the first samples themselves.
    """
    _, values, axes = torch.linalg.svd(features, full_matrices=False)
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    found: Tensor = values[:, None] * axes * largest.sign()
    return found


def woodbury(inverse: Tensor, features: Tensor, sign: Literal[1, -1]) -> Tensor:
    """(A + λI ± ΦᵀΦ)⁻¹ from (A + λI)⁻¹: + adds the samples, − deletes them.

    P ∓ PΦᵀ (I ± ΦPΦᵀ)⁻¹ ΦP, O(nd² + n³) where a new factorisation takes O(d³). Any matrix with the same ΦᵀΦ does as
    well: ``Ridge`` is given the ``root``, which tells no more than ΦᵀΦ does.

    Args:
        inverse: P, ``(d + 1, d + 1)`` float64.
        features: Φ, ``(n, d + 1)`` float64 with the constant feature.
        sign: 1 to add, −1 to delete.
    """
    along = features @ inverse
    small = torch.eye(len(features), dtype=torch.float64) + sign * along @ features.T
    change: Tensor = along.T @ torch.linalg.solve(small, along)
    return inverse - sign * change
