"""Promises about binding: a process and its children run on the given CPUs; absence is no error."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from waiting import LIMIT_S

from hpckit.model.launch import LaunchConfig, NumaBinding, Resources, Runtime
from hpckit.planning.jobs.cpu_binding import CpuBinding
from hpckit.runtime.agent import rank_starter

GPUS = LaunchConfig(resources=Resources(gpus_per_node=2, tasks_per_node=2))
FREE = CpuBinding(cpus=(frozenset(), frozenset()))
CHILD = """
import os, subprocess, sys
sys.stdin.readline()
print(sorted(os.sched_getaffinity(0)), flush=True)
subprocess.run([sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"])
"""


def test_process_and_its_children_run_on_the_given_cpus() -> None:
    """Data-loader workers are children of ranks; a process that has ended is no error."""
    cpu, pipe = max(os.sched_getaffinity(0)), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True) as one:
        rank_starter.pin_process_to_cpus(one.pid, frozenset({cpu}))
        said, _ = one.communicate("go\n", timeout=LIMIT_S)
    assert said.splitlines() == [f"[{cpu}]", f"[{cpu}]"]
    rank_starter.pin_process_to_cpus(one.pid, frozenset({cpu}))


@pytest.mark.parametrize(
    "settings",
    [LaunchConfig(), replace(GPUS, runtime=Runtime(numa_binding=NumaBinding.off)), GPUS],
    ids=["no GPUs", "off", "no driver"],
)
def test_ranks_are_free_if_there_is_nothing_to_be_next_to(settings: LaunchConfig) -> None:
    """Without GPUs, without a driver, or if it is not wanted."""
    assert asyncio.run(rank_starter.choose_rank_cpus(settings, {}, 2)) == FREE


def test_driver_that_hangs_does_not_hold_ranks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start without a binding."""
    release = threading.Event()

    def hang(_: object) -> tuple[frozenset[int], ...]:
        release.wait(30)
        return ()

    monkeypatch.setattr(rank_starter, "read_gpu_cpus", hang)
    monkeypatch.setattr(rank_starter, "_PATIENCE_S", 0.05)
    assert asyncio.run(rank_starter.choose_rank_cpus(GPUS, {}, 2)) == FREE
    release.set()


def test_ranks_without_a_cpu_next_to_their_gpu_are_named() -> None:
    """By their number in the run."""
    words = rank_starter.explain_poor_cpu_binding(replace(FREE, far=(1,)), 8, "n3")
    assert "n3 next to the GPU of rank 9" in words
    words = rank_starter.explain_poor_cpu_binding(replace(FREE, scarce=(0, 1)), 8, "n3")
    assert "too few CPUs on n3 next to the GPUs of rank 8-9" in words
    assert rank_starter.explain_poor_cpu_binding(FREE, 8, "n3") == ""
