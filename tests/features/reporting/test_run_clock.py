"""Promises of a run's clock: wall time goes on, productive time only where work is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.reporting.figure import (
    build_run_clock,
    choose_time_unit,
    parse_recorded_time,
    smooth_values,
)
from hpckit.model.goodput import TimePart, TimeSpan

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
spans = st.lists(st.tuples(st.sampled_from(TimePart), st.integers(1, 1000)), min_size=1, max_size=12).map(
    lambda parts: list(_placed(parts))
)


def _placed(parts: list[tuple[TimePart, int]]) -> list[TimeSpan]:
    found, at = list[TimeSpan](), BEGIN
    for part, seconds in parts:
        end = at + timedelta(seconds=seconds)
        found.append(TimeSpan(part=part, begin=at, end=end, attempt=1, round=0))
        at = end
    return found


@given(spans, st.lists(st.floats(-100, 20_000), min_size=1))
def test_clock_never_goes_back_and_ends_with_the_account(some: list[TimeSpan], moments: list[float]) -> None:
    """Productive time is at most wall time, and at the end the sum of the productive spans."""
    clock = build_run_clock(some)
    assert clock is not None
    at = [BEGIN.timestamp() + moment for moment in sorted(moments)]
    for of in (clock.wall_s, clock.productive_s):
        assert list(map(of, at)) == sorted(map(of, at))
    assert all(clock.productive_s(one) <= clock.wall_s(one) + 1e-3 for one in at)
    kept = [one.end - one.begin for one in some if one.part is TimePart.productive]
    end = some[-1].end.timestamp()
    assert abs(clock.productive_s(end) - sum(kept, timedelta()).total_seconds()) < 1e-3
    assert abs(clock.wall_s(end) - (some[-1].end - BEGIN).total_seconds()) < 1e-3


def test_clock_begins_with_the_first_attempt() -> None:
    """The queue before it is not the run's; without an attempt there is no clock."""
    queue = TimeSpan(part=TimePart.queue, begin=BEGIN, end=BEGIN + timedelta(hours=1), attempt=0, round=None)
    (work,) = _placed([(TimePart.productive, 60)])
    assert build_run_clock([queue]) is None
    clock = build_run_clock([queue, work])
    assert clock is not None
    assert clock.wall_s(BEGIN.timestamp() + 5) == 5


def test_moments_that_are_none_are_unknown() -> None:
    """A row may have any text there."""
    assert parse_recorded_time("yesterday") is None
    assert parse_recorded_time(BEGIN.isoformat()) == BEGIN.timestamp()


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan"))), st.integers(1, 9))
def test_smoothing_keeps_places_and_bounds(values: list[float], window: int) -> None:
    """As many values; each within what was logged; gaps stay."""
    found = smooth_values(values, window)
    assert [one != one for one in found] == [one != one for one in values]  # noqa: PLR0124  # NaN
    known = [one for one in values if one == one]  # noqa: PLR0124
    assert all(min(known) - 1e-6 <= one <= max(known) + 1e-6 for one in found if one == one)  # noqa: PLR0124


@given(st.floats(0, 1e9))
def test_unit_leaves_a_readable_number(longest_s: float) -> None:
    """At least three of it, unless it is the second."""
    unit = choose_time_unit(longest_s)
    assert unit == 1 or longest_s / unit >= 3
