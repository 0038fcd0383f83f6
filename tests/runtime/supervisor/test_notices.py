"""Promises about notices: which of them stand once the scheduler was asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.cluster.allocation import AllocationEnding, AttemptLimits, RequeueResult
from hpckit.model.failure import Cause
from hpckit.model.launch import LaunchConfig
from hpckit.model.states import RequeueOutcome
from hpckit.runtime.assignment import AgentCommand, Allocation, Assignment
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.notices import Notices

RUNS_ON = AllocationEnding(runs_on=True)
PREEMPTED = AllocationEnding(cause=Cause.preempted)
NO_ANSWER = AllocationEnding()


def notices(answer: AllocationEnding) -> Notices:
    """Return the notices of an attempt on Slurm, which says this of its end."""
    allocation = Allocation(
        limits=AttemptLimits,
        why=lambda: answer,
        requeue=lambda *_: RequeueResult(outcome=RequeueOutcome.unknown),
        draining=lambda _: None,
    )
    launch: Any = Path("/nowhere")
    assignment = Assignment(
        launch=launch,
        index=0,
        job_index=0,
        settings=LaunchConfig(),
        agents=AgentCommand(prefix=("srun",), environ={}),
        requeue=True,
        environ={},
        allocation=allocation,
    )
    journal: Any = SimpleNamespace(record_event=lambda _: None)
    attempt: Any = SimpleNamespace(is_cancelled=lambda: False)
    return Notices(
        assignment=assignment, deadline=Deadline(lead=timedelta(seconds=60)), journal=journal, attempt=attempt
    )


def test_signal_to_an_agent_alone_is_no_notice_where_the_job_runs_on() -> None:
    """Slurm knows of no end: what the agent passed on is taken back, and the next one is heard."""
    known = notices(RUNS_ON)
    known.record_stop_signal("SIGTERM", can_save=True)
    assert known.noticed.is_set(), "ranks act at once: there may be little time"
    asyncio.run(known.find_meaning_of_stop_signal())
    dismissed = known.dismissed
    assert (known.notice, known.noticed.is_set()) == (None, False)
    assert dismissed is not None
    known.note_own_signal("SIGTERM", can_save=True)
    asyncio.run(known.find_meaning_of_stop_signal())
    assert known.dismissed is None
    assert known.notice is not None


@pytest.mark.parametrize("answer", [PREEMPTED, NO_ANSWER], ids=["preempted", "no-answer"])
def test_preemption_that_the_step_hears_first_is_a_notice(answer: AllocationEnding) -> None:
    """With a grace period the step is told first: so Slurm says, or it does not answer."""
    known = notices(answer)
    known.record_stop_signal("SIGTERM", can_save=True)
    asyncio.run(known.find_meaning_of_stop_signal())
    assert known.notice is not None
    assert (known.notice.cause, known.dismissed) == (Cause.preempted, None)


def test_signal_to_the_supervisor_is_a_notice_whatever_slurm_says() -> None:
    """Who stops the batch side means the attempt."""
    known = notices(RUNS_ON)
    known.record_stop_signal("SIGTERM", can_save=True)
    known.note_own_signal("SIGTERM", can_save=True)
    asyncio.run(known.find_meaning_of_stop_signal())
    assert known.notice is not None


def warned(left_s: float | None, answer: AllocationEnding, signal: str = "") -> Notices:
    """Return the notices of an attempt with so much time, which has been sent SIGUSR1."""
    known = notices(answer)
    end_s = None if left_s is None else time.monotonic() + left_s
    known.deadline.limits, known.deadline.known = AttemptLimits(end_s=end_s), True
    known.deadline.signal = signal
    known.note_own_signal("SIGUSR1", can_save=True)
    asyncio.run(known.find_meaning_of_stop_signal())
    return known


@pytest.mark.parametrize("left_s", [3600, None], ids=["an-hour", "no-limit"])
@pytest.mark.parametrize("answer", [RUNS_ON, NO_ANSWER], ids=["runs-on", "no-answer"])
def test_warning_far_from_the_time_limit_is_a_request_to_save(
    left_s: float | None, answer: AllocationEnding
) -> None:
    """`scancel -s USR1` in the middle of a run ends nothing, and costs no restart of the limit."""
    known = warned(left_s, answer)
    assert (known.notice, known.noticed.is_set(), known.told.is_set()) == (None, False, False)
    assert known.dismissed is not None
    assert known.dismissed.cause is Cause.notice


@pytest.mark.parametrize(("left_s", "signal"), [(100, ""), (620, "B:USR1@600"), (0, "")])
def test_warning_near_the_time_limit_is_the_time_limits(left_s: float, signal: str) -> None:
    """Slurm warns as early as `--signal` says, and up to a minute earlier."""
    known = warned(left_s, RUNS_ON, signal)
    assert known.notice is not None
    assert (known.notice.cause, known.dismissed) == (Cause.time_limit, None)


def test_warning_by_which_slurm_tells_of_a_preemption_is_a_preemption() -> None:
    """`PreemptParameters=send_user_signal` sends it at any time."""
    known = warned(3600, PREEMPTED)
    assert known.notice is not None
    assert known.notice.cause is Cause.preempted


def test_end_that_follows_a_request_is_heard() -> None:
    """SIGTERM while the ranks are saving still ends the attempt."""
    known = notices(RUNS_ON)
    known.deadline.known = True
    known.note_own_signal("SIGUSR1", can_save=True)
    known.note_own_signal("SIGTERM", can_save=True)
    asyncio.run(known.find_meaning_of_stop_signal())
    assert known.notice is not None
    assert (known.notice.signal, known.dismissed) == ("SIGTERM", None)


def test_request_to_save_is_only_noted_where_there_is_nothing_to_save() -> None:
    """Nothing is ended that could not go on from where it is."""
    known = notices(RUNS_ON)
    said: list[str] = []
    known.deadline.known, known.journal.record_warning = True, said.append  # type: ignore[method-assign,assignment]
    known.note_own_signal("SIGUSR1", can_save=False)
    assert (known.notice, known.noticed.is_set()) == (None, False)
    assert "nothing to save yet" in said[0]
    asked = known.find_unmet_save_request(timedelta(seconds=30))
    assert asked is not None
    assert asked.signal == "SIGUSR1"
    assert known.find_unmet_save_request(timedelta()) is None  # a round that began since


def test_nothing_is_a_notice_once_the_attempt_is_over() -> None:
    """A requeue that was asked for sends SIGTERM, too; the final event stays the last."""
    known = notices(RUNS_ON)
    told: list[events.Event] = []
    known.journal.record_event = told.append  # type: ignore[method-assign,assignment]
    known.over = True
    known.note_own_signal("SIGTERM", can_save=True)
    assert known.notice is None
    assert told == []
    assert known.told.is_set(), "who waits for a preemption's end goes on"


def test_process_that_leaves_does_not_die_of_a_late_signal() -> None:
    """Its exit code is the attempt's, and its event loop prints no exception as it closes."""
    code = """
import asyncio, os, signal, sys
from hpckit.runtime.supervisor.notices import Notices
async def leave():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    Notices.ignore_signals()
asyncio.run(leave())
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
