"""The matrix of requests, by hand: three requests of two, two and four items."""

from __future__ import annotations

import pytest

from letheon.errors import DataError
from letheon.metrics.measurement import Undefined
from letheon.metrics.text.relapse import Matrix, before, so_far, together
from letheon.metrics.text.scores import Scores

SIZES = (2, 2, 4)
NAME = "rouge_l_recall/1"


def part(j: int, value: float, name: str = NAME) -> Scores:
    """Request j's items around a mean of ``value``."""
    return Scores(name, {f"{j}-{i}": value + (0.1 if i % 2 else -0.1) for i in range(SIZES[j - 1])})


def row(*values: float) -> tuple[Scores, ...]:
    return tuple(part(j, value) for j, value in enumerate(values, 1))


MATRIX = Matrix((row(0.2), row(0.5, 0.3), row(0.4, 0.3, 0.1)))


def test_the_cells_are_the_means() -> None:
    assert [[m.value for m in cells] for cells in MATRIX.cells()] == [
        pytest.approx([20.0]),
        pytest.approx([50.0, 30.0]),
        pytest.approx([40.0, 30.0, 10.0]),
    ]


def test_relapse_is_the_last_row_less_the_diagonal() -> None:
    assert MATRIX.relapse(1).value == pytest.approx(20.0)
    assert MATRIX.relapse(2).value == pytest.approx(0.0)
    assert MATRIX.relapse(1).n == 2


def test_after_the_last_request_nothing_can_have_relapsed() -> None:
    assert MATRIX.relapse(3).value == Undefined("no request came after it")
    for j in (0, 4):
        with pytest.raises(ValueError, match="of 3"):
            MATRIX.relapse(j)


def test_so_far_counts_every_item_once_and_not_every_request() -> None:
    found = MATRIX.so_far()
    assert [m.value for m in found] == pytest.approx([20.0, 40.0, (2 * 40.0 + 2 * 30.0 + 4 * 10.0) / 8.0])
    assert [m.n for m in found] == [2, 4, 8]
    assert found == so_far(MATRIX.rows)


def test_the_model_before_any_request_changes_with_the_number_of_requests() -> None:
    """As in COP's tables, where Original has another value in each column."""
    assert [m.value for m in before(row(0.9, 0.7, 0.5))] == pytest.approx([90.0, 80.0, (180.0 + 140.0 + 200.0) / 8.0])


def test_continued_training_is_compared_with_the_last_row() -> None:
    assert [m.value for m in MATRIX.after_training(row(0.5, 0.3, 0.6))] == pytest.approx([10.0, 0.0, 50.0])
    with pytest.raises(DataError, match="3 requests were served, continued training is measured on 2"):
        MATRIX.after_training(row(0.5, 0.3))


def test_a_run_that_goes_on_has_the_first_rows_only() -> None:
    assert Matrix(MATRIX.rows[:2]).relapse(1).value == pytest.approx(30.0)
    assert Matrix(()).so_far() == []


def test_a_row_that_lacks_a_request_is_refused() -> None:
    with pytest.raises(DataError, match="after request 2 the metric is wanted on each of 2 requests, there are 1"):
        Matrix((row(0.2), row(0.5)))


def test_a_request_with_other_items_or_another_metric_later_is_refused() -> None:
    swapped = (row(0.2), (part(2, 0.3), part(1, 0.5)))
    with pytest.raises(DataError, match="items differ"):
        Matrix(swapped)
    with pytest.raises(DataError, match="cannot be compared"):
        Matrix((row(0.2), (part(1, 0.5, "probability/1"), part(2, 0.3))))


def test_an_item_of_two_requests_would_count_twice_and_is_refused() -> None:
    with pytest.raises(DataError, match="in two requests: 1-0, 1-1"):
        together([part(1, 0.5), part(1, 0.5)])
    with pytest.raises(DataError, match="have no common mean"):
        together([part(1, 0.5), part(2, 0.5, "probability/1")])
    with pytest.raises(DataError, match="no requests"):
        together([])
