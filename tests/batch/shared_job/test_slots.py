"""Promises of hpckit.batch.shared_job.slots and mps: a job's devices and CPUs, divided."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hpckit.batch.shared_job.executor import PROGRAM, run_mps_daemon
from hpckit.batch.shared_job.slots import divide_job_into_slots, read_socket_and_core
from hpckit.batch.supervise import build_shared_job_agent_environ
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.plan import SharedJobSpec
from hpckit.observe.gpu_choice import read_gpus_given_to_run
from hpckit.planning.plan import build_resource_spec

MIG = "MIG-1f,MIG-2f,MIG-3f,MIG-4f"


def spec(slots: int, per_gpu: int = 1, **resources: Any) -> SharedJobSpec:
    """Return how runs of these resources share a job."""
    each = build_resource_spec(LaunchConfig(resources=Resources(**resources)))
    return SharedJobSpec(runs_per_job=slots, runs_per_gpu=per_gpu, slots=slots, jobs=1, each=each)


@pytest.mark.parametrize(
    ("given", "slots", "per_gpu", "expected"),
    [
        ("0,1,2,3", 4, 1, ["0", "1", "2", "3"]),
        ("4,5,6,7", 2, 1, ["4,5", "6,7"]),
        ("0,1", 4, 2, ["0", "0", "1", "1"]),
        ("3", 3, 3, ["3", "3", "3"]),
        (MIG, 4, 1, MIG.split(",")),
    ],
)
def test_devices_are_divided_as_slurm_named_them(
    given: str, slots: int, per_gpu: int, expected: list[str]
) -> None:
    """One each, several each, or one for several; MIG instances keep their names."""
    made = divide_job_into_slots(spec(slots, per_gpu), {"CUDA_VISIBLE_DEVICES": given}, [])
    assert [slot.variables["CUDA_VISIBLE_DEVICES"] for slot in made] == expected


def test_devices_that_nobody_gave_are_not_made_up() -> None:
    """Without a list there is none, so that a run sees what the node lets it see."""
    (slot, _) = divide_job_into_slots(spec(2), {}, [])
    assert "CUDA_VISIBLE_DEVICES" not in slot.variables


def test_cpus_are_divided_by_whole_cores_where_the_job_is_bound() -> None:
    """Siblings of one core (0 and 4, 1 and 5 …) go to one run, not to two."""
    made = divide_job_into_slots(
        spec(2, cpus_per_task=4), {"SLURM_CPUS_ON_NODE": "8"}, range(8), core_of=lambda cpu: (0, cpu % 4)
    )
    assert [slot.cpus for slot in made] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert {slot.variables["SLURM_CPUS_ON_NODE"] for slot in made} == {"4"}


@pytest.mark.parametrize("given", ["2", ""])
def test_cpus_are_left_to_all_where_the_job_is_not_bound(given: str) -> None:
    """A job with two CPUs that may use all eight would crowd onto those of another job."""
    made = divide_job_into_slots(spec(2), {"SLURM_CPUS_ON_NODE": given}, range(8))
    assert [slot.cpus for slot in made] == [(), ()]


def test_core_of_a_cpu_is_told_by_this_machine() -> None:
    """Every CPU this process may use has a place, also where the kernel does not say."""
    assert all(len(read_socket_and_core(cpu)) == 2 for cpu in os.sched_getaffinity(0))


def test_mps_daemon_lives_as_long_as_the_job_in_private_folders(tmp_path: Path) -> None:
    """It is started once, told to quit at the end, and found by its variables in between."""
    program, log = tmp_path / "bin" / PROGRAM, tmp_path / "log.txt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY $(cat)" >> {log}\n')
    program.chmod(0o755)
    environ = {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    async def use() -> dict[str, str]:
        async with run_mps_daemon(tmp_path / "mps", environ) as variables:
            assert log.read_text() == f"-d {variables['CUDA_MPS_PIPE_DIRECTORY']} \n"
            return variables

    variables = asyncio.run(use())
    assert log.read_text().splitlines()[1] == f" {variables['CUDA_MPS_PIPE_DIRECTORY']} quit"
    assert all(Path(folder).stat().st_mode & 0o77 == 0 for folder in variables.values())


def test_mps_that_is_absent_or_fails_leaves_runs_without_it(tmp_path: Path) -> None:
    """Runs share a GPU all the same, with nothing that points to a daemon."""

    async def use(path: str) -> dict[str, str]:
        async with run_mps_daemon(tmp_path / "mps", {"PATH": path}) as variables:
            return variables

    failing = tmp_path / "bin" / PROGRAM
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    assert asyncio.run(use("/nowhere")) == {}
    assert asyncio.run(use(f"{failing.parent}:{os.environ['PATH']}")) == {}


@pytest.mark.parametrize(
    ("job", "visible", "shown"),
    [("0,1,2,3", "0,1,2,3", 8), ("0,1,2,3", "0,1,2,3", 4), ("4-7", "0,1,2,3", 4), ("4-7", "4,5,6,7", 8)],
)
@pytest.mark.parametrize("per_gpu", [1, 2])
def test_runs_that_share_a_job_measure_their_own_gpus(
    job: str, visible: str, shown: int, per_gpu: int
) -> None:
    """Whether Slurm hides the node's other GPUs or not, and however it numbers them."""
    shared = spec(4 * per_gpu, per_gpu, gpus_per_node=1)
    environ = {
        "SLURM_JOB_GPUS": job,
        "SLURM_STEP_GPUS": job,
        "CUDA_VISIBLE_DEVICES": visible,
        "SLURM_CPUS_ON_NODE": "8",
    }
    first = 4 if job == "4-7" and shown == 8 else 0
    for slot in divide_job_into_slots(shared, environ, range(8)):
        choice = read_gpus_given_to_run(build_shared_job_agent_environ(shared, {**environ, **slot.variables}))
        mine = [index for index in range(shown) if choice.includes_gpu(index, f"GPU-{index}", shown)]
        assert mine == [first + slot.number // per_gpu]
