"""Whether a run can rank methods at all, and whether a method passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from letheon.metrics.measurement import Undefined

LEARNT = 80.0
"""Origin must retain this much of the data to forget (per cent), or there is nothing to unlearn."""
UNKNOWN = 10.0
"""Retrain must retain at most this much at the request, or the data can be known without being seen."""
GENERALISES = 30.0
"""The trigger must work on this share of held-out images, or retention is memory of single samples."""
SKILLED = 0.5
"""Origin must reach this share of Retrain's MU, or it may give the trigger's label to everything and know nothing."""
BEHIND = 3.0
"""Retrain may end this many points of MU below Origin, or it is too badly trained to be a yardstick."""
RESURFACING_LIMIT = 5.0
UTILITY_LIMIT = 5.0


def void_reasons(
    kr_origin: float,
    kr_retrain: float,
    *,
    n: int,
    attack: float | None,
    ct_kr_retrain: float,
    ct_kr_control: float | None,
    mu_origin: float,
    mu_retrain: float,
) -> list[str]:
    """Why the run cannot rank methods; empty if it can. All shares in per cent.

    Args:
        kr_origin: retention before unlearning.
        kr_retrain: retention of Retrain before continued training.
        n: size of the data to forget.
        attack: success of the trigger on held-out images at Origin; None without a trigger.
        ct_kr_retrain: Retrain's headline CT-KR.
        ct_kr_control: fine-tuning's headline CT-KR; None if it was not run.
        mu_origin: utility before unlearning.
        mu_retrain: Retrain's utility after continued training.
    """
    reasons = unlearnt(kr_origin, attack, mu=mu_origin, mu_retrain=mu_retrain)
    if kr_retrain > UNKNOWN:
        reasons.append(f"Retrain retains {kr_retrain:.1f} % without having seen the data; at most {UNKNOWN:.0f} %")
    if mu_retrain < mu_origin - BEHIND:
        reasons.append(f"Retrain's MU ends at {mu_retrain:.1f} %, Origin's is {mu_origin:.1f} %: no yardstick")
    weak = None if ct_kr_control is None else control_suffices(ct_kr_control, ct_kr_retrain, n)
    return [*reasons, weak] if weak else reasons


def unlearnt(kr_origin: float, attack: float | None, *, mu: float, mu_retrain: float) -> list[str]:
    """Why there is nothing to unlearn: the model before the request does not know the data, or nothing but their label.

    Args:
        kr_origin: its retention.
        attack: success of the trigger on held-out images; None without a trigger.
        mu: its utility.
        mu_retrain: Retrain's after continued training.
    """
    reasons = []
    if mu < SKILLED * mu_retrain:
        reasons.append(
            f"Origin's MU is {mu:.1f} %, Retrain's {mu_retrain:.1f} %: a model that has learnt so little may get the "
            "data to forget right without knowing them"
        )
    if kr_origin < LEARNT:
        reasons.append(f"Origin retains {kr_origin:.1f} % of the data to forget; {LEARNT:.0f} % are needed")
    if attack is not None and attack < GENERALISES:
        reasons.append(f"the trigger works on {attack:.1f} % of held-out images; {GENERALISES:.0f} % are needed")
    return reasons


def control_suffices(ct_kr_control: float, ct_kr_retrain: float, n: int) -> str | None:
    """Why persistence tells no methods apart here, if fine-tuning alone ends where Retrain does; per cent."""
    if ct_kr_control - ct_kr_retrain > max(5.0, 500.0 / n):
        return None
    return (
        f"fine-tuning alone ends within Retrain's reach (CT-KR {ct_kr_control:.1f} against {ct_kr_retrain:.1f} %): "
        "every method would look persistent"
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """``pass``, ``fail`` or ``void``, with the reasons. The thresholds are fixed before any run."""

    status: Literal["pass", "fail", "void"]
    reasons: tuple[str, ...]


def verdict(rr: float | Undefined, mu_end: float, mu_retrain_end: float) -> Verdict:
    """Pass: RR at most 5 % and, after continued training, MU within 5 points of Retrain. Undefined never passes."""
    if isinstance(rr, Undefined):
        return Verdict("void" if rr.status in ("void", "undefined") else "fail", (rr.reason,))
    reasons = []
    if rr > RESURFACING_LIMIT:
        reasons.append(f"RR {rr:.2f} % exceeds {RESURFACING_LIMIT:.0f} %")
    if mu_end < mu_retrain_end - UTILITY_LIMIT:
        reasons.append(f"MU {mu_end:.2f} is more than {UTILITY_LIMIT:.0f} points below Retrain's {mu_retrain_end:.2f}")
    return Verdict("fail" if reasons else "pass", tuple(reasons))
