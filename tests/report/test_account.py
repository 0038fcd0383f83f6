"""Promises of hpckit.report.account."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.model.failure import Cause
from hpckit.model.goodput import Goodput, Interruption, MeasuredTimes, TimeParts
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RoundAction
from hpckit.report.account import (
    format_goodput_line,
    format_share_bar,
    format_short_duration,
    render_launch_goodput,
    render_run_details,
)
from hpckit.report.rows import build_run_row
from hpckit.report.text import render_plain_text

START = datetime(2026, 1, 1, tzinfo=UTC)


def account(
    parts: TimeParts, *history: Interruption, stepped: bool = True, saves: int = 0, writing_s: int = 0
) -> Goodput:
    """Return an account."""
    return Goodput(
        parts=parts,
        stepped=stepped,
        attempts=2,
        rounds=3,
        lost_steps=1 if stepped else None,
        saves=saves,
        saved_bytes=saves << 30,
        writing=timedelta(seconds=writing_s),
        interruptions=history,
        first_wait=timedelta(0),
        measured=MeasuredTimes(mtbf=timedelta(hours=1)),
        ettr_expected=None,
    )


def shown(parts: TimeParts, *history: Interruption, whole: bool = True, **more: Any) -> str:
    """Return the page of a run with this account."""
    record = RunRecord(id="demo.0", index=0, overrides=(), folder="/x", warnings=("mind the gap",))
    return render_plain_text(
        render_run_details(
            build_run_row(RunView(record=record)), account(parts, *history, **more), whole=whole
        )
    )


def interruption(
    step: int, *, message: str = "rank 1 was killed", action: RoundAction | None = None
) -> Interruption:
    """Return a failure."""
    return Interruption(
        at=START, attempt=1, round=None, cause=Cause.signal, message=message, step=step, action=action
    )


MINUTES = {
    name: timedelta(minutes=minutes)
    for name, minutes in {"productive": 121, "restart": 4, "start": 5, "queue": 2}.items()
}


def test_page_of_a_run_has_its_goodput_in_a_line() -> None:
    """How much, of how long, and what it was lost to, the most first."""
    text = shown(TimeParts(**MINUTES), whole=False)
    assert text.splitlines() == [
        "warning: mind the gap",
        "",
        "goodput 93.1 % of 2 h 10 min; lost: 5 min start-up, 4 min restarts; waited 2 min",
    ]


def test_goodput_of_a_launch_is_that_of_its_runs_together() -> None:
    """Productive time of all of them by the time all were on their nodes."""
    idle = account(TimeParts(start=timedelta(hours=9)), stepped=False)
    both = [account(TimeParts(productive=timedelta(hours=3))), account(TimeParts(start=timedelta(hours=1)))]
    assert format_goodput_line([*both, idle]) == ["\ngoodput 75.0 % of 4 h; lost: 1 h start-up"]
    assert "start-up    1:00:00" in render_plain_text(render_launch_goodput([*both, idle], whole=True))
    assert render_launch_goodput([idle], whole=True) == []


def test_a_short_run_has_a_goodput_line_only_after_trouble() -> None:
    """A first run of three seconds is mostly start-up: its share would say nothing."""
    brief = TimeParts(productive=timedelta(seconds=1), start=timedelta(seconds=2))
    ended = interruption(3, action=RoundAction.end)
    assert format_goodput_line([account(brief)]) == []
    assert format_goodput_line([account(brief, ended)]) == []
    again = interruption(3, action=RoundAction.new_round)
    assert format_goodput_line([account(brief, again)]) == ["\ngoodput 33.3 % of 3 s; lost: 2 s start-up"]
    assert "new round" in shown(brief, again, whole=False)
    assert "was killed" not in shown(brief, ended, whole=False)


def test_page_has_only_the_parts_there_are() -> None:
    """Each part that took time has its line; they stand above their sum."""
    text = shown(TimeParts(productive=timedelta(minutes=3), queue=timedelta(minutes=1)))
    assert text.splitlines() == [
        "warning: mind the gap",
        "",
        "goodput 100.0 % of 3 min on its nodes; ETTR 75.0 % of 4 min of wall time",
        "part        time  of wall",
        f"productive  3:00   75.0 %  {'█' * 18}",
        f"queue       1:00   25.0 %  {'█' * 6}",
        "wall        4:00",
    ]


def test_page_of_a_run_without_time_is_its_warnings() -> None:
    """Nothing is divided by nothing."""
    assert shown(TimeParts()) == "warning: mind the gap"


def test_page_says_where_work_cannot_be_seen() -> None:
    """A run that reports no step has no ratio, and that is said."""
    text = shown(TimeParts(start=timedelta(minutes=1)), stepped=False)
    assert "goodput not known: the run has reported no step" in text
    again = interruption(0, action=RoundAction.new_round)
    text = shown(TimeParts(start=timedelta(minutes=1)), again, stepped=False)
    assert "steps unknown" in text
    assert "repeated step" not in text


def test_page_shows_the_latest_interruptions_and_counts_the_rest() -> None:
    """A run that failed often does not bury its account, nor does a long message."""
    history = [interruption(step, message="long " * 99 + "\nmore") for step in range(12)]
    text = shown(TimeParts(productive=timedelta(minutes=1)), *history)
    assert "12 failures (12 signal) over 3 rounds in 2 attempts; 1 repeated step" in text
    assert "… and 2 earlier" in text
    assert max(map(len, text.splitlines())) < 140
    assert "failures: every 1:00:00" in text


def test_page_says_which_share_of_the_time_went_into_writing_checkpoints() -> None:
    """What is written beside training costs the file system, and stalls nothing."""
    parts = TimeParts(productive=timedelta(seconds=100), queue=timedelta(seconds=900))
    assert "3 saves, 3.0 GiB: 9.0 % of the time writing" in shown(parts, saves=3, writing_s=9)
    assert "writing" not in shown(parts)


def test_page_says_what_each_ratio_and_interval_is_of() -> None:
    """Training time lies between saves; the ratio of the formula has its name."""
    measured = MeasuredTimes(interval=timedelta(seconds=0.36), stall=timedelta(seconds=0.41))
    parts = TimeParts(productive=timedelta(seconds=14), checkpoint=timedelta(seconds=16))
    found = replace(account(parts, saves=40), measured=measured, ettr_expected=0.471)
    record = RunRecord(id="demo.0", index=0, overrides=(), folder="/x")
    text = render_plain_text(render_run_details(build_run_row(RunView(record=record)), found, whole=True))
    assert "40.0 GiB: one every 0.36 s of training, checkpoint stall 0.41 s each" in text
    assert "\nETTR since the first step 46.7 %; expected from its times: 47.1 % (Daly's formula)" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (0.0123, "0.012 s"), (8.24, "8.2 s"), (60, "1:00"), (3723, "1:02:03")]
)
def test_span_is_as_fine_as_it_is_short(seconds: float, text: str) -> None:
    """Fractions matter below a minute only."""
    assert format_short_duration(timedelta(seconds=seconds)) == text


def test_bar_shows_something_for_anything() -> None:
    """A small share is a sliver, the whole is full, nothing is nothing."""
    assert (format_share_bar(0), format_share_bar(0.0001), format_share_bar(1)) == ("", "▏", "█" * 24)
    assert format_share_bar(0.5) == "█" * 12
