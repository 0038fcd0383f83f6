"""More memory and more time on a real Slurm: a run that asked for too little completes after one growth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project

from hpckit.sandbox.settings import SLURM_CONF

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(600)]

EAT = """
import os, time
eaten = bytearray(900 << 20)
time.sleep(float(os.environ["GRACE"]))
"""
"""Holds 900 MB for longer than Slurm takes to look."""

NAP = """
import time


def main(config, run):
    for step in run.steps(60):
        time.sleep(1)
"""
"""Takes a minute, and keeps no state."""


@pytest.fixture
def enforced(sandbox: Sandbox) -> Iterator[None]:
    """Let Slurm end each step that takes more memory than its job asked for."""
    conf = SLURM_CONF.read_text()
    SLURM_CONF.write_text(f"{conf}\nJobAcctGatherParams=OverMemoryKill\n")
    sandbox.slurm("scontrol", "reconfigure")
    yield
    SLURM_CONF.write_text(conf)
    sandbox.slurm("scontrol", "reconfigure")


def grown(run: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return after which causes a run's jobs asked for more, and for what."""
    return [(change["cause"], change["words"]) for change in run["grown"]]


@pytest.mark.usefixtures("enforced")
@pytest.mark.release
@pytest.mark.main
def test_run_that_slurm_ends_for_its_memory_completes_with_more(sandbox: Sandbox, project: Project) -> None:
    """Slurm kills its step, agent and all; the next job gets three times the memory, and that is enough."""
    project.write("eat.py", EAT)
    project.json(
        *("launch", "experiment=command", "cluster=sandbox", "code.snapshot=false", "env.GRACE='8'"),
        *("resources.mem_gb=0.6", "recovery.grow_on_oom=3", "command=[python,eat.py]"),
    )
    (run,) = project.ended()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    assert grown(run) == [("host_oom", ["resources.mem_gb=1.8"])]
    said = sandbox.slurm("sacct", "-nXP", "--format=ReqMem", f"--jobs={run['job']}")
    assert said.startswith(("1843M", "1.80G")), said
    text = project.hpckit("status").stdout
    assert "it asks for resources.mem_gb=1.8 since" in text
    assert "(more after host_oom)" in text


@pytest.mark.main
def test_run_with_too_little_time_completes_with_more(sandbox: Sandbox, project: Project) -> None:
    """It keeps no state, so that in the same time it would never get further."""
    project.write("nap.py", NAP)
    project.json(
        *(
            "launch",
            "experiment=function",
            "entry_point=nap:main",
            "cluster=sandbox",
            "resources.timeout_min=1",
        ),
        *("recovery.grow_on_timeout=2", "runtime.save_before_timeout_s=25"),
    )
    (run,) = project.ended(patience_s=400)["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    assert grown(run) == [("time_limit", ["resources.timeout_min=2"])]
    limit = sandbox.slurm("sacct", "-nXP", "--format=Timelimit", f"--jobs={run['job']}")
    assert limit.strip() == "00:02:00"
