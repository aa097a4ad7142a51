"""The resurfacing rates that the paper prints (arXiv 2601.22601v3, Tables III to VI), to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from letheon.metrics import VERSIONS
from letheon.metrics.measurement import Undefined
from letheon.metrics.resurfacing import resurfacing, resurfacing_rate, too_little_room, unsuccessful

# (table and method, CT-KR, Origin's KR, Retrain's CT-KR, printed RR). Table VI prints KR as shares, not per cent.
PUBLISHED = [
    ("III LeNet-5 FedAU", 49.37, 98.99, 0.56, 49.59),
    ("III LeNet-5 FedOSD", 4.18, 98.99, 0.56, 3.68),
    ("III ResNet-18 FedAU", 90.63, 90.77, 3.22, 99.84),
    ("III ResNet-18 FedOSD", 67.48, 90.77, 3.22, 73.40),
    ("III HSViT FedAU", 21.73, 91.65, 0.42, 23.36),
    ("III HSViT FedOSD", 63.62, 91.65, 0.42, 69.28),
    ("III HSViT NoT", 0.60, 91.65, 0.42, 0.20),
    ("III HSViT Lethe", 0.45, 91.65, 0.42, 0.03),
    ("V FedAU", 61.80, 82.80, 2.35, 73.90),
    ("V NoT", 12.20, 82.80, 2.35, 12.24),
    ("VI NPO", 0.4537, 0.4837, 0.3967, 65.52),
    ("VI SimNPO", 0.4684, 0.4837, 0.3967, 82.41),
]

ZEROS = [
    ("III LeNet-5 FedEraser", 0.19, 98.99, 0.56),
    ("III LeNet-5 NoT", 0.37, 98.99, 0.56),
    ("III LeNet-5 Lethe", 0.34, 98.99, 0.56),
    ("III ResNet-18 FedEraser", 2.11, 90.77, 3.22),
    ("III ResNet-18 Lethe", 2.44, 90.77, 3.22),
    ("IV FedAU, NoT and Lethe", 0.00, 100.00, 0.00),
    ("V Lethe", 1.40, 82.80, 2.35),
    ("VI Lethe", 0.3957, 0.4837, 0.3967),
]


@pytest.mark.parametrize(
    ("ct_kr", "kr_origin", "ct_kr_retrain", "printed"),
    [row[1:] for row in PUBLISHED],
    ids=[row[0] for row in PUBLISHED],
)
def test_a_printed_rate_is_reproduced(ct_kr: float, kr_origin: float, ct_kr_retrain: float, printed: float) -> None:
    assert f"{resurfacing_rate(ct_kr, kr_origin, ct_kr_retrain):.2f}" == f"{printed:.2f}"


@pytest.mark.parametrize(
    ("ct_kr", "kr_origin", "ct_kr_retrain"), [row[1:] for row in ZEROS], ids=[row[0] for row in ZEROS]
)
def test_a_method_at_or_below_retrain_has_rate_zero(ct_kr: float, kr_origin: float, ct_kr_retrain: float) -> None:
    assert resurfacing_rate(ct_kr, kr_origin, ct_kr_retrain) == 0.0


def test_retrains_immediate_retention_instead_gives_other_numbers() -> None:
    assert f"{resurfacing_rate(49.37, 98.99, 0.31):.2f}" == "49.72"
    assert f"{resurfacing_rate(61.80, 82.80, 2.40):.2f}" == "73.88"


def test_the_row_that_the_paper_marks_as_unsuccessful_is_the_only_one() -> None:
    """U-KR of Table III, ResNet-18; Origin 90.77, Retrain 4.00."""
    found = {"FedEraser": 0.22, "FedAU": 0.00, "FedOSD": 0.56, "NoT": 35.78, "Lethe": 0.11}
    failed = {name for name, u_kr in found.items() if unsuccessful(u_kr, 90.77, 4.00)}
    assert failed == {"NoT"}


@pytest.mark.parametrize(("kr_origin", "ct_kr_retrain"), [(0.3, 0.3), (0.29, 0.30), (30.0, 30.0), (29.0, 30.0)])
def test_without_room_between_origin_and_retrain_there_is_no_rate(kr_origin: float, ct_kr_retrain: float) -> None:
    with pytest.raises(ValueError, match="undefined"):
        resurfacing_rate(50.0, kr_origin, ct_kr_retrain)
    assert isinstance(too_little_room(kr_origin, ct_kr_retrain, 1000), Undefined)


def test_the_rate_from_outcomes_is_the_rate_of_their_shares_over_the_worst_round() -> None:
    def bits(*shares: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        return np.array([[i < share for i in range(100)] for share in shares])

    found = resurfacing(bits(2, 30, 12), bits(1, 4, 2), bits(90)[0])
    assert found.value == pytest.approx(100 * (30 - 4) / (90 - 4))
    assert found.n == 100
    assert found.low is not None
    assert found.high is not None
    assert found.low < 100 * 26 / 86 < found.high


def test_the_rate_grows_with_what_resurfaces_and_with_nothing_else() -> None:
    rates = [resurfacing_rate(ct_kr, 95.0, 1.0) for ct_kr in (0.0, 1.0, 5.0, 50.0, 95.0, 99.0)]
    assert rates[:2] == [0.0, 0.0]
    assert rates == sorted(rates)
    assert rates[4] == 100.0
    assert rates[5] > 100.0  # not clipped above


def test_these_values_belong_to_version_1_of_the_definition() -> None:
    assert VERSIONS["resurfacing"] == 1
