"""Promises of planning.overlap: what runs have together is counted once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.planning.overlap import runs_together

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    """Return a moment."""
    return START + timedelta(seconds=second)


def test_run_alone_has_all_and_two_have_half() -> None:
    """Beside another for half of its time, a run has three quarters."""
    found = runs_together({0: (at(0), at(10)), 1: (at(0), at(10)), 2: (at(10), at(20))})
    assert found == {0: 2.0, 1: 2.0, 2: 1.0}
    half = runs_together({0: (at(0), at(10)), 1: (at(5), at(10))})
    assert half == {0: pytest.approx(10 / 7.5), 1: pytest.approx(2)}


def test_no_run_and_runs_without_time() -> None:
    """Nothing is divided by zero, also where a clock was set back."""
    assert runs_together({}) == {}
    assert runs_together({3: (at(5), at(5)), 4: (at(9), at(1))}) == {3: 1.0, 4: 1.0}


SPANS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 100)).map(lambda one: (one[0], sum(one))),
    min_size=1,
    max_size=12,
)


@given(SPANS)
def test_shares_of_all_runs_add_up_to_the_time_in_which_any_ran(
    spans: list[tuple[int, int]],
) -> None:
    """Each run's time over its divisor, summed, is the union of their times."""
    found = runs_together({index: (at(b), at(e)) for index, (b, e) in enumerate(spans)})
    busy = {second for begin, end in spans for second in range(begin, end)}
    shares = sum((end - begin) / found[index] for index, (begin, end) in enumerate(spans))
    assert shares == pytest.approx(len(busy))
    assert all(1 <= one <= len(spans) + 1e-9 for one in found.values())
