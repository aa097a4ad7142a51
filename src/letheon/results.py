"""From a run to numbers: one row for each method, with intervals, the reference, and what is undefined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from letheon.curve import Point, bits_of
from letheon.folder import label_counts
from letheon.methods.fine_tuning import FineTuning
from letheon.metrics.interval import share
from letheon.metrics.measurement import Measurement, Undefined
from letheon.metrics.resurfacing import resurfacing, unsuccessful
from letheon.metrics.retention import Bits, continued_retention, retention
from letheon.metrics.utility import collapsed, utility, worst_class, worst_client
from letheon.metrics.verdict import Verdict, control_suffices, unlearnt, verdict, void_reasons
from letheon.middleware import Cost
from letheon.pipeline import Run
from letheon.stage import Outcome


@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of one run; everything is computed from its curves and costs."""

    run: Run

    @cached_property
    def n(self) -> int:
        """Size of the data to forget."""
        return self.run.population.forget_size

    @cached_property
    def retrain(self) -> str:
        """Label of the reference."""
        return next(iter(self.run.experiment.methods))

    @cached_property
    def control(self) -> str | None:
        """Label of the fine-tuning with most rounds: what a method must beat. None if none was run."""
        controls = {k: m for k, m in self.run.experiment.methods.items() if isinstance(m, FineTuning)}
        return max(controls, key=lambda label: controls[label].rounds) if controls else None

    @cached_property
    def _test_counts(self) -> list[int]:
        targets = self.run.population.test.targets
        return [int(c) for c in torch.bincount(targets, minlength=self.run.experiment.task.classes)]

    def bits(self, outcome: Outcome) -> Bits:
        """``(points, n)`` outcomes on the data to forget."""
        return bits_of(outcome.points, self.n)

    def continued_bits(self, label: str) -> Bits:
        """``(rounds, n)`` outcomes for t ≥ 1; a method that diverged keeps what it last had."""
        bits = self.bits(self.run.continued[label])
        return bits[1:] if len(bits) > 1 else bits

    def mu(self, point: Point) -> Measurement:
        """MU of a point, over the classes that no request removes."""
        return utility(point.test_correct, self._test_counts, without=self.run.population.labels)

    def kr_origin(self, label: str | None = None) -> Measurement:
        """KR before unlearning; of the model that a method trained for itself, if it did."""
        return retention(self.bits(self._origin(label))[-1])

    def _origin(self, label: str | None) -> Outcome:
        return self.run.origin if label is None else self.run.origin_of(label)

    def u_kr(self, label: str) -> Measurement:
        """KR at the end of unlearning."""
        return retention(self.bits(self.run.unlearned[label])[-1])

    def attack(self, point: Point) -> Measurement | None:
        """Success of the trigger on held-out images."""
        held_out = self.run.population.triggered_test
        return share(point.attack, len(held_out)) if point.attack is not None and held_out is not None else None

    @cached_property
    def void(self) -> list[str]:
        """Why the run cannot rank methods; empty if it can."""
        broken = [reason for reason in (self.run.origin.diverged, self.run.diverged(self.retrain)) if reason]
        attack = self.attack(self.run.origin.points[-1])
        return [f"the reference diverged: {reason}" for reason in broken] + void_reasons(
            number(self.kr_origin()),
            number(self.u_kr(self.retrain)),
            n=self.n,
            attack=number(attack) if attack else None,
            ct_kr_retrain=number(self._ct_kr_retrain),
            ct_kr_control=None if self._is_class_level else self._ct_kr_control,
            mu_origin=number(self.mu(self.run.origin.points[-1])),
            mu_retrain=number(self.mu(self.run.continued[self.retrain].points[-1])),
        )

    @property
    def _is_class_level(self) -> bool:
        return self.run.population.request.scopes == {"class"}

    @cached_property
    def _ct_kr_control(self) -> float | None:
        if self.control is None:
            return None
        return number(continued_retention(self.continued_bits(self.control), "max"))

    @cached_property
    def caveat(self) -> str | None:
        """What qualifies every rate of a run that is not void.

        A class of which nothing is left in training is forgotten by training alone, always: at class level that makes
        no run void, but it has to be said.
        """
        if not self._is_class_level or self._ct_kr_control is None:
            return None
        return control_suffices(self._ct_kr_control, number(self._ct_kr_retrain), self.n)

    def rr(self, label: str) -> Measurement:
        """RR, or why there is none: void run, collapsed model, failed forgetting, no room; in this order."""
        unlearned, continued = self.run.unlearned[label], self.run.continued[label]
        reason: Undefined | None = None
        void = self.void or self._own_void(label)
        if void:
            reason = Undefined("; ".join(void), "void")
        elif self.run.diverged(label):
            reason = Undefined(f"collapsed: {self.run.diverged(label)}", "collapsed")
        else:
            reason = collapsed(
                number(self.mu(unlearned.points[-1])),
                number(self.mu(continued.points[-1])),
                number(self.mu(self.run.origin_of(label).points[-1])),
                number(self.mu(self.run.continued[self.retrain].points[-1])),
            ) or unsuccessful(number(self.u_kr(label)), number(self.kr_origin(label)), number(self.u_kr(self.retrain)))
        if reason:
            return Measurement(reason, None, None, self.n)
        origin = self.bits(self.run.origin_of(label))[-1]
        return resurfacing(self.continued_bits(label), self.continued_bits(self.retrain), origin)

    def _own_void(self, label: str) -> list[str]:
        """Why nothing can be said of a method that trained its own Origin: that model, too, must have learnt."""
        if label not in self.run.trained:
            return []
        origin, attack = self.run.trained[label], self.attack(self.run.trained[label].points[-1])
        if origin.diverged:
            return [f"its own Origin diverged: {origin.diverged}"]
        mu, mu_retrain = (number(self.mu(outcome.points[-1])) for outcome in (origin, self.run.continued[self.retrain]))
        reasons = unlearnt(
            number(self.kr_origin(label)), number(attack) if attack else None, mu=mu, mu_retrain=mu_retrain
        )
        return [f"{label} trains its own Origin: {reason}" for reason in reasons]

    def verdict(self, label: str) -> Verdict:
        """Whether the method passes the fixed thresholds."""
        return self._judged(label, self.rr(label))

    def _judged(self, label: str, rr: Measurement) -> Verdict:
        mu_end, mu_retrain = (number(self.mu(self.run.continued[x].points[-1])) for x in (label, self.retrain))
        return verdict(rr.value, mu_end, mu_retrain)

    @cached_property
    def _ct_kr_retrain(self) -> Measurement:
        """Retrain's headline CT-KR: in every row."""
        return continued_retention(self.continued_bits(self.retrain), "max")

    @cached_property
    def _retained_labels(self) -> dict[str, list[int]]:
        """Each client's mix of labels: for the worst client of every row."""
        return label_counts(self.run.population, self.run.experiment.task.classes)

    def row(self, label: str) -> dict[str, Any]:
        """The row of one method, as ``letheon compare --json`` prints it. Shares are in per cent."""
        unlearned, continued = self.run.unlearned[label], self.run.continued[label]
        experiment = self.run.experiment
        rr = self.rr(label)
        outcome = self._judged(label, rr)
        cost = total(unlearned.costs)
        row: dict[str, Any] = {
            "method": label,
            "seed": experiment.seed,
            "run": experiment.digest,
            "scope": "+".join(each.scope for each in experiment.request.members),
            "n_forget": self.n,
            "n_test": sum(self._test_counts),
        }
        row |= self.mu(continued.points[-1]).fields("mu")
        row |= self.mu(self.run.continued[self.retrain].points[-1]).fields("mu_retrain")
        row |= self.mu(unlearned.points[-1]).fields("mu_unlearned")
        row |= self.mu(self.run.origin_of(label).points[-1]).fields("mu_origin")
        row |= self._worst(continued.points[-1])
        row |= self.kr_origin(label).fields("kr_origin")
        row |= self._ct_kr_retrain.fields("kr_retrain")
        row |= self.u_kr(label).fields("u_kr")
        row |= continued_retention(self.continued_bits(label), "max").fields("ct_kr_max")
        row |= continued_retention(self.continued_bits(label), "mean").fields("ct_kr_mean")
        row |= continued_retention(self.continued_bits(label), "last").fields("ct_kr_last")
        row |= self._attacks(self.run.origin_of(label).points[-1], continued.points[-1])
        row |= rr.fields("rr") | _why(rr.value)
        row |= {
            "rounds": cost.rounds,
            "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down,
            "flops": cost.flops,
            "seconds": cost.seconds,
            "server_storage_bytes": stored(unlearned),
            "verdict": outcome.status,
            "verdict_reasons": list(outcome.reasons),
            "control": self.control,
            "caveat": self.caveat,
        }
        return row

    def _worst(self, point: Point) -> dict[str, Any]:
        gone = self.run.population.labels
        fields = worst_class(point.test_correct, self._test_counts, without=gone).fields("mu_worst_class")
        client, value = worst_client(point.test_correct, self._test_counts, self._retained_labels)
        return fields | value.fields("mu_worst_client") | {"worst_client": client}

    def _attacks(self, origin: Point, end: Point) -> dict[str, Any]:
        """ASR: of the model before the request, and after continued training."""
        at_origin, at_end = self.attack(origin), self.attack(end)
        if at_origin is None or at_end is None:
            names = [f"{name}{end}" for name in ("asr", "asr_origin") for end in ("", "_low", "_high")]
            return dict.fromkeys(names)
        return at_end.fields("asr") | at_origin.fields("asr_origin")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all methods, Retrain first."""
        return [self.row(label) for label in self.run.experiment.methods]


def number(measurement: Measurement) -> float:
    """The value of a measurement that is always defined."""
    if isinstance(measurement.value, Undefined):
        raise ValueError(measurement.value.reason)
    return measurement.value


def _why(value: float | Undefined) -> dict[str, Any]:
    if isinstance(value, Undefined):
        return {"rr_status": value.status, "rr_reason": value.reason}
    return {"rr_status": None, "rr_reason": None}


def total(costs: Iterable[Cost]) -> Cost:
    """The sum over phases."""
    summed = Cost("total")
    for cost in costs:
        for name in ("rounds", "bytes_down", "bytes_up", "samples", "flops", "seconds"):
            setattr(summed, name, getattr(summed, name) + getattr(cost, name))
    return summed


def stored(outcome: Outcome) -> int:
    """Bytes that the server keeps for the method beyond the model."""
    return sum(t.numel() * t.element_size() for t in outcome.state.memory.values())


def ranges(rows: Iterable[Mapping[str, Any]], key: str) -> tuple[float, float, float, int] | None:
    """Mean, minimum, maximum and count of ``key`` over the rows where it is defined."""
    values = [row[key] for row in rows if row[key] is not None]
    return (float(np.mean(values)), min(values), max(values), len(values)) if values else None
