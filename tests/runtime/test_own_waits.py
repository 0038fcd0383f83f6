"""Promises of own waits: a rank that sleeps or reads waits for itself, not for other ranks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiers import thorough

from hpckit.runtime.rank.step_times import OwnWaits, ThreadWork

pytestmark = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"} or not os.access("/proc/thread-self/syscall", os.R_OK),
    reason="this system does not say what a thread waits for",
)

PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.rank.step_times import make_step_times

rank, pause, store = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
info = RankInfo(
    rank=rank, local_rank=rank, node_rank=0, world_size=2, local_world_size=2, node="n",
    num_nodes=1, source=RankSource.single,
)
reports = []
times = make_step_times(info, torch.device("cpu"), reports.append, samples_per_step=1)
for step in range(9):
    times.begin_step(step)
    if rank == 0 or pause > 0:
        time.sleep(abs(pause))
    dist.all_reduce(torch.ones(4))
times.end_last_step()
waited, seconds = sum(one.waiting_s for one in reports), sum(one.seconds for one in reports)
print(waited / seconds)
"""


def shares(pause: float, folder: Path) -> list[float]:
    """Return the share of its steps in which each of two ranks waited for the other."""
    words = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(pause), str(folder / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [float(rank.communicate(timeout=120)[0]) for rank in ranks]


@pytest.mark.training
def test_ranks_that_sleep_do_not_wait_in_collectives(tmp_path: Path) -> None:
    """Two ranks that sleep a quarter of a second each step would be called communication bound."""
    assert max(shares(0.25, tmp_path)) < 0.2


@thorough
def test_rank_that_waits_for_a_sleeping_one_does(tmp_path: Path) -> None:
    """The one that sleeps is the slow one, and the other waits for it in the collective."""
    slow, fast = shares(-0.25, tmp_path)
    assert slow < 0.2
    assert fast > 0.7


def test_lock_counts_as_waiting_for_others_and_work_only_once() -> None:
    """What cannot be told from a collective is none of the rank's own."""
    waits = OwnWaits()
    threading.Event().wait(0.3)
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    waits.stop_counting()
    assert waits.seconds < 0.1


def test_watching_ends_with_what_it_is_for() -> None:
    """No thread is left behind by the loops of a run."""
    before = threading.active_count()
    work = ThreadWork(alone=False)
    time.sleep(0.2)
    assert (work.own_work_seconds() or 0.0) >= 0.1
    del work
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before
