"""Promises of `Deadline`: when ranks leave ahead of the time limit, and what is warned of."""

from __future__ import annotations

from datetime import timedelta

from hpckit.model.cluster.allocation import AttemptLimits
from hpckit.runtime.supervisor.deadline import Deadline

END = 43_200.0


def seconds(count: float) -> timedelta:
    """Return so many seconds."""
    return timedelta(seconds=count)


def deadline(**limits: object) -> Deadline:
    """Return the deadline of an attempt that ends then."""
    known = AttemptLimits(end_s=END, **limits)  # type: ignore[arg-type]
    return Deadline(lead=seconds(60), limits=known)


def test_deadline_leaves_time_for_two_measured_saves() -> None:
    """Until a save is measured the configured lead holds, then twice what it took and a step."""
    one = deadline()
    assert one.when_ranks_must_leave(seconds(0)) == END - 60
    one.record_and_check_save_time(seconds(3))
    one.record_and_check_save_time(seconds(1))
    assert one.when_ranks_must_leave(seconds(2)) == END - (2 * (3 + 2) + 5)


def test_deadline_is_none_without_a_limit_or_without_a_lead() -> None:
    """An endless job is never told to leave, nor one whose lead is 0."""
    endless = Deadline(lead=seconds(60))
    assert endless.when_ranks_must_leave(seconds(1)) is None
    unwanted = Deadline(lead=seconds(0), limits=AttemptLimits(end_s=END))
    assert unwanted.when_ranks_must_leave(seconds(1)) is None


def test_deadline_warns_once_of_saves_that_a_notice_leaves_no_time_for() -> None:
    """Twice the longest save has to fit between SIGTERM and SIGKILL, grace included."""
    one = deadline(kill_wait=seconds(30), grace=seconds(60))
    assert one.record_and_check_save_time(seconds(44)) == ""
    warning = one.record_and_check_save_time(seconds(46))
    assert one.record_and_check_save_time(seconds(50)) == ""
    assert "a save takes 46.0 s" in warning
    assert "leaves 90 s" in warning


def test_deadline_knows_a_signal_of_the_time_limit() -> None:
    """SIGTERM at the end of the job is the time limit's; long before it is not."""
    one = deadline()
    assert one.would_signal_mean_time_limit(END)
    assert not one.would_signal_mean_time_limit(END - 60)
