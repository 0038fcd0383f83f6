"""Data on the nodes of a real Slurm: read once, whoever is killed, and found again by a requeue."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SIZE = 400 << 20
CHECK = 'cmp "$HPCKIT_DATA_BIG" "$SOURCE" && case $HPCKIT_ATTEMPT_DIR in *$SLEEPS) sleep 60;; esac'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file for the nodes."""
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    return path


def _launch(project: Project, source: Path, nodes: int, *words: str, sleeps: str = "never") -> None:
    base = (
        "cluster=sandbox",
        f"resources.nodes={nodes}",
        "code.snapshot=false",
        "data=stage",
        "data.margin_gb=0",
    )
    variables = (f"+env.SOURCE={source}", f"+env.SLEEPS={sleeps}", "resources.timeout_min=3")
    places = (f"data.dir={source.parent / 'node'}", f"+data.stage.big.source={source}")
    done = project.hpckit("launch", *base, *variables, *places, *words, "--", "bash", "-c", CHECK)
    assert done.returncode == 0, done.stderr


def _events(project: Project, kind: str, attempt: int = 1) -> list[dict[str, Any]]:
    file = project.launch_folder() / "runs" / "00000" / "attempts" / f"{attempt:03d}" / "events.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["event"] == kind]


def _find_agents(folder: Path) -> dict[str, int]:
    """Return the agents of a launch, by node."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_text().split("\0")
            environ = (entry / "environ").read_text().split("\0")
        except OSError:
            continue
        if "hpckit.runtime.agent" in command and str(folder) in command and "srun" not in command[0]:
            found[dict(one.partition("=")[::2] for one in environ).get("SLURMD_NODENAME", "")] = int(
                entry.name
            )
    return found


@thorough
def test_four_nodes_read_the_source_once_though_an_agent_is_killed(
    sandbox: Sandbox, project: Project, source: Path
) -> None:
    """A killed agent's subtree is served by another; it comes back, and goes on with what it had."""
    _launch(project, source, 4)
    sandbox.wait_until(lambda: [*(source.parent / "node").rglob("*.blocks")], "the first blocks")
    joined = {event["node_rank"]: event["node"] for event in _events(project, "agent_joined")}
    os.kill(_find_agents(project.launch_folder())[joined[1]], signal.SIGKILL)  # it serves the fourth
    (run,) = project.ended()["runs"]
    assert run["state"] == "completed", run["failure"]
    hows = {one["node"]: one["how"] for one in run["staged"]}
    assert hows == {node: "copied" if rank == 0 else "tree" for rank, node in joined.items()}
    assert {one["bytes"] for one in run["staged"]} == {SIZE}
    assert len(_events(project, "agent_joined")) == 5
    assert len(_events(project, "round_started")) == 1


@thorough
def test_a_requeue_finds_the_data_there(sandbox: Sandbox, project: Project, source: Path) -> None:
    """The next attempt on the same nodes copies nothing; when the run has ended, nothing is left."""
    _launch(project, source, 2, 'resources.nodelist="n[1-2]"', sleeps="001")
    sandbox.wait_until(lambda: _events(project, "round_started"), "the first round")
    (run,) = project.look()["runs"]
    sandbox.slurm("scontrol", "requeue", run["job"])
    (run,) = project.ended()["runs"]
    assert run["state"] == "completed", run["failure"]
    assert [one["how"] for one in run["staged"]] == ["kept", "kept"]
    assert not [*(source.parent / "node").rglob("data.bin")]


@thorough
def test_a_source_that_changed_in_the_queue_is_refused(
    sandbox: Sandbox, project: Project, source: Path
) -> None:
    """What was launched is what is trained on: the run ends, and no node is blamed."""
    _launch(project, source, 2, "+resources.additional_parameters.hold=true")
    os.truncate(source, SIZE - 1)
    (run,) = project.look()["runs"]
    sandbox.slurm("scontrol", "release", run["job"])
    (run,) = project.ended()["runs"]
    assert (run["state"], run["failure"]["cause"]) == ("failed", "data_refused")
    assert run["failure"]["node"] is None
