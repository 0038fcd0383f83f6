"""Real local attempts with three ranks, one of which never enters a collective: it is named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from tiers import thorough

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Runtime
from hpckit.record.store import read_events

pytestmark = pytest.mark.training

TRAIN = """
import time, torch, torch.distributed as dist

def reads_a_slow_file(seconds):
    time.sleep(seconds)

def main(config, run):
    pair = dist.new_group([0, 2])
    ones = torch.ones(16, 4)
    dist.all_reduce(ones)
    for step in run.steps(30):
        if step == 26 and run.info.rank == 1:
            reads_a_slow_file(60)
        dist.all_reduce(ones)
        if run.info.rank != 1:
            dist.broadcast(ones, src=0, group=pair)
        time.sleep(0.1)
"""

TIME_OUT = """
import datetime, time, torch, torch.distributed as dist

def reads_a_slow_file(seconds):
    time.sleep(seconds)

def main(config, run):
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))
    ones = torch.ones(8)
    for step in run.steps(10):
        if step == 1 and run.info.rank == 2:
            reads_a_slow_file(60)
        dist.all_reduce(ones, group=group)
"""

SCRIPT = TIME_OUT.replace("def main(config, run):", "import hpckit\nrun = hpckit.attach()\nif run:")


def failure_of(ended: Any) -> Failure:
    """Return what the first round of an attempt failed of."""
    told = read_events(ended.paths.events)
    (found,) = [one.failure for one in told if isinstance(one, events.RoundEnded) and one.failure]
    return found


def test_hang_names_the_rank_that_never_entered_and_the_collective(workshop: Any, ranks: Any) -> None:
    """Its number, its shape, who waits and where; what each rank said is kept."""
    runtime = Runtime(stop_grace_s=2, rendezvous_timeout_s=20, hang_min_s=4, hang_first_s=60, hang_factor=3)
    ended = workshop.attempt(TRAIN, **ranks(3, runtime=runtime))
    failure = failure_of(ended)
    assert (failure.cause, failure.rank, failure.step) == (Cause.hang, 1, 26)
    assert "never entered all_reduce #28 of the default group (float32[16, 4])" in failure.message
    assert ") wait in it for " in failure.message
    assert "at task.py:" in failure.message
    assert "is in reads_a_slow_file" in failure.message
    wait = failure.collective
    assert wait is not None
    assert (wait.missing, wait.waiting, wait.culprit) == ((1,), (0, 2), 1)
    for rank in range(3):
        said = json.loads(ended.paths.round(0).rank_collectives_file(rank).read_text())
        assert said["rank"] == rank


def test_time_out_of_a_collective_names_the_rank_that_others_waited_for(workshop: Any, ranks: Any) -> None:
    """Not the one that raised: that waited."""
    check_time_out(workshop.attempt(TIME_OUT, **ranks(3)))


@thorough
def test_time_out_in_a_script_names_it_too(workshop: Any, ranks: Any) -> None:
    """With `attach()` nobody above the script sees its exception."""
    command = [sys.executable, "task.py"]
    check_time_out(workshop.attempt(SCRIPT, **ranks(3, command=command, entry_point=None)))


def check_time_out(ended: Any) -> None:
    """Check the failure, and that the time in which ranks waited is no training."""
    failure = failure_of(ended)
    assert (failure.cause, failure.rank) == (Cause.communication, 2), failure
    assert "never entered all_reduce #2 of group" in failure.message
    assert failure.collective is not None
    assert failure.collective.missing == (2,)
    told = read_events(ended.paths.events)
    (round_ended,) = [one for one in told if isinstance(one, events.RoundEnded)]
    assert round_ended.silent_s >= 2.9
