"""When a process, its agent and its whole attempt stood still."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import chain, repeat

import pytest

from hpckit.model import events
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.runtime.agent.step_reports import StepReports
from hpckit.runtime.pauses import PauseWatch, Suspensions

STANDS = """
import sys, time
from hpckit.runtime.pauses import PauseWatch
watch = PauseWatch()
print("looks", flush=True)
for _ in range(100):
    time.sleep(0.1)
    for begin, end in watch.pop_new_pauses():
        print(end - begin, flush=True)
        sys.exit()
"""


def watch_at(*moments: float) -> PauseWatch:
    """Return a watch whose clock shows these moments, the last one for ever."""
    shown = chain(moments, repeat(moments[-1]))
    return PauseWatch(clock=lambda: next(shown))


def test_pause_is_a_gap_between_two_looks() -> None:
    """A late look is no pause; a gap of a time slice of Slurm's is, and is told once."""
    watch = watch_at(0, 1, 4.5, 10, 11)
    for _ in range(3):
        watch.detect_process_pause()
    assert watch.pop_new_pauses() == [(4.5, 10)]
    assert watch.pop_new_pauses() == []


def test_pause_counts_as_far_as_it_lies_in_a_time() -> None:
    """Of what lasted until now, the part that the process did not run."""
    watch = watch_at(0, 40, 42)
    watch.detect_process_pause()
    watch.detect_process_pause()
    assert watch.count_paused_seconds(10) == 8
    assert watch.count_paused_seconds(1) == 0
    assert watch.count_paused_seconds(100) == 40


def test_stopped_process_finds_its_pause() -> None:
    """SIGSTOP and SIGCONT, as `scontrol suspend` sends them."""
    words = [sys.executable, "-c", STANDS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looks\n"
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(4.5)
        os.kill(process.pid, signal.SIGCONT)
        assert float(process.stdout.readline()) == pytest.approx(4.6, abs=0.6)


def test_report_of_steps_that_span_a_pause_is_dropped() -> None:
    """It would be a straggler's, or one of a rank that waits in collectives."""
    kept: list[RankSteps] = []
    reports = StepReports(keep=kept.append, pauses=watch_at(0, 41, 41, 41, 45, 45))
    reports.pauses.detect_process_pause()
    slow = RankSteps(rank=0, steps=2, seconds=41, own_s=0.1, waiting_s=40.9)
    later = RankSteps(rank=0, steps=2, seconds=2, own_s=0.1, waiting_s=1.9)
    reports.add_report(slow, 0)
    reports.add_report(later, 0)
    assert kept == [later]


@pytest.mark.parametrize(("agents_s", "found"), [(5.0, [5.0]), (None, [])])
def test_suspension_is_a_pause_that_an_agent_had_too(
    monkeypatch: pytest.MonkeyPatch, agents_s: float | None, found: list[float]
) -> None:
    """Ranks go on if only their supervisor is stopped."""
    monkeypatch.setattr("hpckit.runtime.pauses._LOOK_S", 0.01)
    monkeypatch.setattr("hpckit.runtime.pauses._AGENTS_S", 0.05)
    said: list[events.Event] = []
    watch = watch_at(0, 5, 5.01)
    suspensions = Suspensions(record=said.append, pauses=watch)
    watch.detect_process_pause()

    async def follow() -> None:
        watching = asyncio.create_task(suspensions.record_pauses_agents_shared())
        await asyncio.sleep(0.03)
        if agents_s is not None:
            suspensions.record_agent_pause(agents_s)
        await asyncio.sleep(0.2)
        watching.cancel()

    asyncio.run(follow())
    seconds = [one.seconds for one in said if isinstance(one, events.Suspended)]
    assert seconds == pytest.approx(found, abs=0.1)
