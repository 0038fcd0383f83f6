"""Data on the nodes of a real Slurm: read once, whoever is killed, and found again by a requeue."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

from hpckit.sandbox.process import find_recorded_pid

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SIZE = 400 << 20
_READ = re.compile(r"^ *read\[\d+\] (\d+) bytes from \d+ flags", re.MULTILINE)
CHECK = (
    'sha256sum "$HPCKIT_DATA_BIG" | grep -q "^$SUM" && case $HPCKIT_ATTEMPT_DIR in *$SLEEPS) sleep 60;; esac'
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file for the nodes, alone in its folder."""
    path = tmp_path / "shared" / "data.bin"
    path.parent.mkdir()
    with path.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    os.utime(path, (1e9, 1e9))  # SquashFS has whole seconds
    return path


@contextmanager
def _count_bytes_read(sandbox: Sandbox, source: Path) -> Iterator[Callable[[], dict[str, int]]]:
    """Give each node a mount of its own with the source; yields what tells the bytes that each asked it for.

    So no node finds in the machine's cache what another has read: it is as on nodes of their own.
    """
    folder, base = source.parent, source.parents[1]
    image = base / "shared.sqsh"
    packing = [
        "mksquashfs",
        str(folder),
        str(image),
        "-noD",
        "-noF",
        "-no-fragments",
        "-quiet",
        "-no-progress",
    ]
    subprocess.run(packing, check=True)
    logs = {node: base / f"{node}.log" for node in sandbox.nodes}
    pids = {node: find_recorded_pid(f"slurmd.{node}") for node in sandbox.nodes}
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for node, log in logs.items():
            words = ["nsenter", f"--target={pids[node]}", "--mount", "squashfuse", "-f", "-d", image, folder]
            with log.open("wb") as file:
                servers.append(subprocess.Popen(list(map(str, words)), stderr=file))
        mounts = [Path(f"/proc/{pid}/mounts") for pid in pids.values()]
        mounted = f" {folder} fuse"
        sandbox.wait_until(lambda: all(mounted in file.read_text() for file in mounts), "all have the source")
        yield lambda: {node: sum(map(int, _READ.findall(log.read_text()))) for node, log in logs.items()}
    finally:
        for server, pid in zip(servers, pids.values(), strict=False):
            subprocess.run(["nsenter", f"--target={pid}", "--mount", "umount", "-l", folder], check=False)
            server.wait()


def _launch(project: Project, source: Path, nodes: int, *words: str, sleeps: str = "never") -> None:
    base = (
        "cluster=sandbox",
        f"resources.nodes={nodes}",
        "code.snapshot=false",
        "data=stage",
        "data.margin_gb=0",
    )
    variables = (f"+env.SUM={_sum(source)}", f"+env.SLEEPS={sleeps}", "resources.timeout_min=3")
    places = (f"data.dir={source.parents[1] / 'node'}", f"+data.stage.big.source={source}")
    done = project.hpckit("launch", *base, *variables, *places, *words, "--", "bash", "-c", CHECK)
    assert done.returncode == 0, done.stderr


def _sum(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    if sandbox.options["release"] != "22.05":
        pytest.skip("nothing can be mounted from here in a release's chroot")
    with _count_bytes_read(sandbox, source) as count:
        _launch(project, source, 4)
        sandbox.wait_until(lambda: [*(source.parents[1] / "node").rglob("*.blocks")], "the first blocks")
        joined = {event["node_rank"]: event["node"] for event in _events(project, "agent_joined")}
        os.kill(_find_agents(project.launch_folder())[joined[1]], signal.SIGKILL)  # it serves the fourth
        (run,) = project.ended()["runs"]
        assert run["state"] == "completed", run["failure"]
        read = count()
    assert SIZE <= read.pop(joined[0]) < 1.01 * SIZE  # kernels that read ahead ask for some pages twice
    assert set(read.values()) == {0}
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
    assert not [*(source.parents[1] / "node").rglob("data.bin")]


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
