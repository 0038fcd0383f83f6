"""Commands that fall silent: what is taken for a hang, in real attempts with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from hpckit.model import events, messages
from hpckit.model.failure import Cause, Failure, StalledRank
from hpckit.model.launch import Recovery, Runtime
from hpckit.planning.rounds.hang_report import HangReport
from hpckit.record.process import PARENT, read_proc_stat_fields
from hpckit.record.store import read_events
from hpckit.runtime.agent.command_silence import Silence, read_cpu_seconds

pytestmark = pytest.mark.training

LIMIT_MIN = 0.05
SCRIPT = """
import os, subprocess, sys, time

way = os.environ["WAY"] if os.environ["HPCKIT_ROUND"] == "0" else ""
print("began", way, flush=True)
if way == "stuck":
    time.sleep(600)
elif way == "busy":
    subprocess.run(["timeout", "4.5", sys.executable, "-c", "while True: pass"])
    for _ in range(5):
        print("still here", flush=True)
        time.sleep(1)
elif way == "steps":
    import hpckit
    run = hpckit.attach()
    for step in run.steps(1):
        time.sleep(5)
"""


def attempted(workshop: Any, ranks: Any, way: str, count: int = 1, **more: Any) -> tuple[Any, list[Failure]]:
    """Run the script that behaves in this way in its first round; return how its rounds failed."""
    script = workshop.project.parent / "wait.py"
    script.write_text(SCRIPT)
    recovery = Recovery(restarts={"hang": 1}, command_silent_min=LIMIT_MIN)
    settings = ranks(
        count,
        command=[sys.executable, str(script)],
        entry_point=None,
        env={"WAY": way},
        recovery=recovery,
        runtime=Runtime(stop_grace_s=1, hang_min_s=60, hang_first_s=60),
        **more,
    )
    ended = workshop.attempt("", **settings)
    told = [event for event in read_events(ended.paths.events) if isinstance(event, events.RoundEnded)]
    return ended, [event.failure for event in told if event.failure is not None]


def test_silent_and_idle_command_is_ended_and_begins_again(workshop: Any, ranks: Any) -> None:
    """No rank writes or computes for the limit: a hang, and a new round, which completes."""
    ended, (failure,) = attempted(workshop, ranks, "stuck", count=2)
    assert (ended.code, ended.record.round) == (0, 1), ended.output
    assert failure.cause is Cause.hang
    assert failure.message.startswith("no rank wrote anything or computed for ")
    assert failure.message.endswith("(limit 3.0 s)")


@pytest.mark.parametrize("way", ["busy", "steps"])
def test_command_that_computes_prints_or_steps_is_no_hang(workshop: Any, ranks: Any, way: str) -> None:
    """Beyond the limit: a child of the rank computes, then it only prints; or it tells of steps."""
    ended, failures = attempted(workshop, ranks, way)
    assert (ended.code, ended.record.round, failures) == (0, 0, []), ended.output


def test_all_nodes_have_to_be_silent() -> None:
    """A node that waits for another one is silent, too: only together they hang; and it may be over."""

    def idle(rank: int, silent_s: float) -> messages.Hung:
        stall = StalledRank(rank=rank, step=None, silent_s=silent_s, limit_s=60.0, idle=2)
        return messages.Hung(round=0, stall=stall)

    report = HangReport(world_size=4).with_message(0, idle(0, 61.0))
    assert report.found is None
    report = report.with_message(0, idle(0, 0.0)).with_message(1, idle(2, 62.0))
    assert report.found is None
    report = report.with_message(0, idle(0, 63.0))
    assert report.found == idle(0, 63.0)


def test_silence_is_broken_by_output_and_by_work_but_not_by_polling() -> None:
    """A hundredth of a CPU is a watchdog that polls; more is work, and a suspended node proves nothing."""
    silence = Silence(ranks=1, pause_s=1.0)
    assert silence.measure(100.0, "a", {1: 5.0}) == 0
    assert [silence.measure(100.0 + after, "a", {1: 5.0 + after / 200}) for after in (1, 2, 3)] == [1, 2, 3]
    assert silence.measure(104.0, "b", {1: 5.02}) == 0
    assert silence.measure(105.0, "b", {1: 5.02, 2: 0.5}) == 0, "a child has begun to work"
    assert silence.measure(106.0, "b", {1: 5.02}) == 1, "its end is no work"
    assert silence.measure(120.0, "b", {1: 5.02}) == 0, "nobody looked meanwhile"


def find_parent(pid: int) -> int:
    """Return the parent of a process; 0 if that has ended."""
    fields = read_proc_stat_fields(pid)
    return int(fields[PARENT]) if fields else 0


def test_cpu_time_is_that_of_a_rank_and_all_below_it() -> None:
    """Also of a child that is at work in a session of its own; not of this process itself."""
    until = time.monotonic() + 60  # the end of all, whatever happens here
    busy = [sys.executable, "-c", f"import time\nwhile time.monotonic() < {until}: pass"]
    words = f"import subprocess; subprocess.run({busy}, start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", words], start_new_session=True) as parent:
        spent: dict[int, float] = {}
        while sum(spent.values()) < 1:
            time.sleep(0.05)
            found = read_cpu_seconds([parent.pid])  # with what earlier tests of this process left running
            own = [parent.pid, *(pid for pid in found if find_parent(pid) == parent.pid)]
            spent = {pid: found[pid] for pid in own if pid in found}
        (child,) = spent.keys() - {parent.pid}
        os.kill(child, 9)
    assert os.getpid() not in spent
    assert spent[child] > spent[parent.pid]
