"""What holds a run back, named on a real Slurm whose nodes have fake GPUs; a healthy run is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

from hpckit.testing.nvml.fake_nvml import FakeNvml

pytestmark = [pytest.mark.slurm]

TRAIN = """
import os, time
from pathlib import Path

import torch, torch.distributed as dist

from hpckit.testing.nvml.fake_nvml import FakeNvml


def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def main(config, run):
    scenario, gpus = config.params.scenario, Path(os.environ["HPCKIT_FAKE_NVML"])
    fake = FakeNvml(gpus, node=os.environ["SLURMD_NODENAME"])
    fake.profile("h100", gpus=4)
    for gpu in range(4):
        fake.load(gpu, {0: 0.0 if scenario == "idle" else 0.8})
        fake.change({f"g{gpu}.memory_used_bytes": 20e9})
        if scenario == "throttled":
            fake.throttle(gpu, 0x40)
    if scenario == "input":
        for gpu in range(4):
            fake.xid(gpu, 94)
    slow = scenario == "straggler" and run.rank == 1
    for step in run.steps(config.params.steps):
        with run.timed("data"):
            time.sleep(0.06 if scenario == "input" else 0.001)
        busy(0.04 if slow else 0.004)
        time.sleep(0.05)  # the GPU computes
        if run.world_size > 1:
            dist.all_reduce(torch.ones(1))
"""
ALONE = ("input", "throttled", "idle", "healthy")
WORDS = (
    *("cluster=sandbox", "entry_point=slow:main", "code.snapshot=false", "resources.timeout_min=5"),
    *("resources.tasks_per_node=1", "resources.gpus_per_node=1", "runtime.device=cpu"),
    "resources.exclusive=true",
    *("observe.interval_s=0.5", "observe.row_s=2", "+params.steps=400"),
)


@pytest.fixture
def gpus(sandbox: Sandbox, tmp_path: Path) -> Path:
    """Return the folder of a fake library in which each node of the sandbox has GPUs of its own."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    for node in sandbox.nodes:
        fake = FakeNvml(folder, node=node)
        fake.profile("h100", gpus=4)
    fake.build()
    return folder


def launched(project: Project, gpus: Path, *words: str) -> list[dict[str, Any]]:
    """Launch the training, wait for its end, and return what `status --json` says of its runs."""
    project.write("slow.py", TRAIN)
    seen = (f"+cluster.env.LD_LIBRARY_PATH={gpus}", f"+cluster.env.HPCKIT_FAKE_NVML={gpus}")
    done = project.hpckit("launch", *WORDS, *seen, *words, "--wait")
    assert done.returncode == 0, done.stdout
    runs: list[dict[str, Any]] = project.look()["runs"]
    return runs


@thorough
@pytest.mark.timeout(400)
def test_what_holds_a_run_back_is_named_and_a_healthy_run_is_not(tmp_path: Path, gpus: Path) -> None:
    """Waiting for data, heat, an idle GPU: each has its verdict, and no other; energy is told."""
    project = Project(tmp_path / "project")
    project.create()
    runs = launched(project, gpus, f"+params.scenario={','.join(ALONE)}", "-m")
    verdicts = {run["overrides"]["params.scenario"]: [one["kind"] for one in run["verdicts"]] for run in runs}
    assert verdicts == {
        "input": ["input_bound"],
        "throttled": ["throttled"],
        "idle": ["gpu_idle"],
        "healthy": [],
    }
    for run in runs:
        used = run["telemetry"]
        idle = run["overrides"]["params.scenario"] == "idle"
        # Ranks that start slowly have a part in the mean.
        low, high = (0.0, 0.0) if idle else (0.5, 1.0)
        assert low <= used["gpu_utilization"] <= high
        assert used["gpu_memory_bytes"] == 20e9
        assert used["energy_j"] > 0
        assert 0 <= used["data_wait_share"] <= 1
        seconds = run["energy"]["gpu_hours"] * 3600
        assert used["energy_j"] == pytest.approx(used["power_w"] * seconds, rel=0.35)
        warned = "XID 94: an uncorrectable memory error" in str(run["warnings"])
        assert warned == (run["overrides"]["params.scenario"] == "input")
    assert all(run["stragglers"] == [] for run in runs)


@thorough
@pytest.mark.timeout(400)
def test_slow_node_is_named_with_its_rank_and_its_gpu(tmp_path: Path, gpus: Path) -> None:
    """One node's rank computes ten times as long: it is the straggler, on the node it is on."""
    project = Project(tmp_path / "project")
    project.create()
    words = ("+params.scenario=straggler", "resources.nodes=2")
    (run,) = launched(project, gpus, *words)
    assert [one["rank"] for one in run["stragglers"]] == [1]
    assert "straggler" in [one["kind"] for one in run["verdicts"]]
    (found,) = run["stragglers"]
    assert found["slower_by"] > 0.3
    assert found["node"] == run["nodes"][1]
    assert any("longer than its peers" in words for words in run["warnings"])
