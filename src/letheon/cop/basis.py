"""Which directions of a layer's input are protected: chosen from second moments, orthonormal, growing by request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from letheon.errors import ConfigError, DataError
from letheon.tree import Params

Weighting = Literal["unit", "raw"]
"""``unit``: a token x counts 1/‖x‖², so that a few tokens of huge norm do not decide alone. ``raw``: it counts 1."""

ORTHONORMAL = 1e-5
"""Largest entry of VᵀV − I that a basis may have."""
FLOOR: Mapping[torch.dtype, float] = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Eigenvalues below this share of all energy are rounding: second moments square the condition number."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What is kept of one request's inputs to one space until directions are chosen.

    Attributes:
        gram: ``(d, d)`` G = Σ w_t x_t x_tᵀ; float64, or float32 to save memory.
        tokens: Σ over tokens of the weight the caller gave them.
        weighting: what w_t is.
        dtype: of the directions to be chosen: the activations', but at least float32.
    """

    gram: Tensor
    tokens: float
    weighting: Weighting
    dtype: torch.dtype

    def plus(self, other: Self) -> Self:
        """The moments of both sets of inputs together: of two devices, of two halves.

        Raises:
            ValueError: they differ in width, weighting or dtype.
        """
        mine, theirs = ((m.gram.shape, m.gram.dtype, m.weighting, m.dtype) for m in (self, other))
        if mine != theirs:
            raise ValueError(f"moments: {theirs} cannot be added to {mine}; collect both in the same way")
        return type(self)(self.gram + other.gram, self.tokens + other.tokens, self.weighting, self.dtype)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """What of some moments lies outside a basis.

    Attributes:
        values: ``(d,)`` float64, descending: eigenvalues λ of G⊥ = (I − VVᵀ) G (I − VVᵀ), none negative.
        vectors: ``(d, d)`` float64: the eigenvectors as columns.
        total: E = tr G.
        before: tr VᵀGV, what the basis holds already.
        floor: eigenvalues up to here are rounding.
    """

    values: Tensor
    vectors: Tensor
    total: float
    before: float
    floor: float


class Rule(Protocol):
    """How many leading directions of a spectrum are taken."""

    def count(self, spectrum: Spectrum, used: int) -> int:
        """Their number, when the basis has ``used`` columns already."""
        ...


@dataclass(frozen=True)
class Selection:
    """Enough directions for a share of the energy, within caps.

    The smallest r with tr VᵀGV + Σ_{i≤r} λ_i ≥ ε tr G (the criterion of GPM), and then the caps. COP's page gives
    neither ε nor what its r_max counts, so both caps are there. They follow the width unless set: a cap made for wide
    layers saturates narrow ones, and nothing can be forgotten any more.

    Attributes:
        energy: ε, the share of the energy to hold, in (0, 1].
        rank: r_max, the most columns that one request may add; None: an eighth of the width, at most 64.
        rank_total: the most columns in all; None: half of the width.
    """

    energy: float = 0.99
    rank: int | None = None
    rank_total: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise ConfigError(f"selection.energy: must lie in (0, 1], got {self.energy}")
        for name in ("rank", "rank_total"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"selection.{name}: must be at least 1, got {value}")

    def count(self, spectrum: Spectrum, used: int) -> int:
        """The smallest r, within the caps; 0 if the basis holds enough already."""
        width = len(spectrum.values)
        return max(0, min(self._wanted(spectrum), self.columns_each(width), self.columns(width) - used))

    def columns_each(self, width: int) -> int:
        """The most columns that one request may add to a basis of this width."""
        return min(64, max(1, width // 8)) if self.rank is None else self.rank

    def columns(self, width: int) -> int:
        """The most columns that a basis of this width may have."""
        return min(width, max(1, width // 2) if self.rank_total is None else self.rank_total)

    def _wanted(self, spectrum: Spectrum) -> int:
        held = spectrum.before + torch.cat([spectrum.values.new_zeros(1), spectrum.values.cumsum(0)])
        short = int((held < self.energy * spectrum.total).sum())
        # Rounding can keep ε = 1 out of reach; what is above the floor is then all there is.
        return min(short, int((spectrum.values > spectrum.floor).sum()))


@dataclass(frozen=True)
class Sinks:
    """Directions that hold a large share of the raw energy: those of sink tokens, such as the first of a text.

    Unit weighting makes them small, so they are taken first, by raw moments.

    Attributes:
        share: of the energy, in (0, 1]; no more than 1/share directions can hold as much.
    """

    share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"sinks.share: must lie in (0, 1], got {self.share}")

    def count(self, spectrum: Spectrum, used: int) -> int:
        """How many directions outside the basis hold so much."""
        return int((spectrum.values >= max(self.share * spectrum.total, spectrum.floor)).sum())


@dataclass(frozen=True, slots=True)
class Basis:
    """Protected directions of one input space, and where each comes from.

    Attributes:
        vectors: ``(d, m)`` V, orthonormal columns.
        values: ``(m,)`` float64: the eigenvalue λ with which a column was taken; its root is the singular value.
        requests: ``(m,)`` int64: the number of the request that added a column.
        records: ``(k, 5)`` float64, one row for each extension, also if it added nothing: number of the request,
            tokens, energy E, energy held before, energy held after.
    """

    vectors: Tensor
    values: Tensor
    requests: Tensor
    records: Tensor

    def __post_init__(self) -> None:
        m = self.vectors.shape[1] if self.vectors.dim() == 2 else -1
        if self.values.shape != (m,) or self.requests.shape != (m,) or self.records.shape[1:] != (5,):
            shapes = {f.name: tuple(getattr(self, f.name).shape) for f in fields(self)}
            raise ValueError(f"basis: shapes do not fit: {shapes}; expected (d, m), (m,), (m,) and (k, 5)")
        if (error := _departure(self.vectors)) > ORTHONORMAL:
            raise ValueError(f"basis: columns are not orthonormal: VᵀV differs from I by {error:.1e}")

    @classmethod
    def empty(cls, width: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Self:
        """The basis before any request: no columns, so nothing is constrained."""

        def none(*shape: int, of: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=of, device=device)

        f64 = torch.float64
        return cls(none(width, 0, of=dtype), none(0, of=f64), none(0, of=torch.int64), none(0, 5, of=f64))

    @classmethod
    def from_moments(cls, moments: Moments, *, request: int = 0, rule: Rule | None = None) -> Self:
        """The basis of a first request."""
        gram = moments.gram
        return cls.empty(len(gram), moments.dtype, gram.device).extended(moments, request=request, rule=rule)

    @property
    def rank(self) -> int:
        """Columns m."""
        return self.vectors.shape[1]

    @property
    def free(self) -> int:
        """Dimensions d − m that are left for later requests to move in."""
        return self.vectors.shape[0] - self.rank

    @property
    def held(self) -> float:
        """The share of the last extension's energy that lies in the span; 1 if there was none."""
        if not len(self.records) or not self.records[-1, 2]:
            return 1.0
        return float(self.records[-1, 4] / self.records[-1, 2])

    def extended(self, moments: Moments, *, request: int, rule: Rule | None = None) -> Self:
        """This basis and the leading directions of what it does not hold of ``moments``.

        Depends on the moments only through G, so the order of tokens, batches and devices changes V by rounding.

        Args:
            moments: of the request's inputs to this space.
            request: its number, counted from 0.
            rule: how many directions; ``Selection()`` by default.

        Raises:
            DataError: the moments are not finite.
            ValueError: they have another width.
        """
        spectrum = self._spectrum(moments)
        count = (Selection() if rule is None else rule).count(spectrum, self.rank)
        added = self._completed(spectrum.vectors[:, :count])
        values = spectrum.values[:count]
        after = spectrum.before + float(values.sum())
        record = [request, moments.tokens, spectrum.total, spectrum.before, min(after, spectrum.total)]
        return type(self)(
            torch.cat([self.vectors, added], 1),
            torch.cat([self.values, values]),
            torch.cat([self.requests, self.requests.new_full((count,), request)]),
            torch.cat([self.records, self.records.new_tensor([record])]),
        )

    def _spectrum(self, moments: Moments) -> Spectrum:
        if moments.gram.shape != (len(self.vectors),) * 2:
            raise ValueError(f"basis: moments are {tuple(moments.gram.shape)}, the basis has width {len(self.vectors)}")
        if not torch.isfinite(moments.gram).all():
            raise DataError("basis: the activations are not finite; the model has diverged, protect an earlier one")
        gram, known = moments.gram.double(), self.vectors.double()
        total, before = float(gram.trace()), float((known * (gram @ known)).sum())
        outside = _across(_across(gram, known).mT, known)
        values, vectors = torch.linalg.eigh((outside + outside.mT) / 2)
        floor = FLOOR[moments.gram.dtype] * total
        return Spectrum(values.flip(0).clamp_min(0.0), vectors.flip(1), total, before, floor)

    def _completed(self, vectors: Tensor) -> Tensor:
        """``vectors`` made orthogonal to V, twice since the first time leaves rounding of V's, and to each other."""
        known = self.vectors.double()
        orthonormal: Tensor = torch.linalg.qr(_across(_across(vectors, known), known))[0]
        return orthonormal.to(self.vectors.dtype)


def _across(vectors: Tensor, basis: Tensor) -> Tensor:
    """(I − VVᵀ) times ``vectors``: two thin products, never a d×d projector."""
    return vectors - basis @ (basis.mT @ vectors)


def _departure(vectors: Tensor) -> float:
    """The largest entry of |VᵀV − I|; 1 if some is NaN."""
    if not vectors.numel():
        return 0.0
    columns = vectors.double()
    return float((columns.mT @ columns - torch.eye(columns.shape[1], device=columns.device)).abs().max().nan_to_num(1))


def served(bases: Mapping[str, Basis]) -> int:
    """How many requests the bases are of, also if some added nothing: the number of the next one."""
    return max((int(basis.records[:, 0].max()) + 1 for basis in bases.values() if len(basis.records)), default=0)


def least_free(bases: Mapping[str, Basis]) -> float:
    """The share of its dimensions that the fullest space has left for later requests; 1 while nothing is protected."""
    return min((basis.free / len(basis.vectors) for basis in bases.values()), default=1.0)


def least_held(bases: Mapping[str, Basis]) -> float:
    """The share of the last request's energy that is held in the space that holds least of it."""
    return min((basis.held for basis in bases.values()), default=1.0)


def to_params(bases: Mapping[str, Basis]) -> Params:
    """As named tensors, ``cop/SPACE/FIELD``: what ``State.memory`` and ``Work.extras`` hold.

    For each space: ``vectors`` (d, m), ``values`` (m,), ``requests`` (m,) and ``records`` (k, 5).
    """
    return {f"cop/{space}/{f.name}": getattr(b, f.name) for space, b in bases.items() for f in fields(b)}


def from_params(params: Mapping[str, Tensor]) -> dict[str, Basis]:
    """The inverse of ``to_params``; entries of other names are left alone."""
    parts: dict[str, Params] = {}
    for name, tensor in params.items():
        if name.startswith("cop/"):
            space, _, field = name.removeprefix("cop/").rpartition("/")
            parts.setdefault(space, {})[field] = tensor
    return {space: Basis(**tensors) for space, tensors in parts.items()}
