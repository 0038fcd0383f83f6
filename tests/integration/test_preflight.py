"""Nodes of a real Slurm with faults that preflight finds: avoided, replaced or requeued."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.project import Project
from tiers import thorough

from hpckit.model.nodes import IncidentKind, NodeIncident
from hpckit.record.node_history import append_node_incident
from hpckit.sandbox import daemons, process
from hpckit.sandbox.lifecycle import require_recorded_options
from hpckit.testing.nvml.fake_nvml import FakeNvml

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

TRAIN = """
import torch, torch.distributed as dist


def main(config, run):
    for step in run.steps(3):
        dist.all_reduce(torch.ones(1))
        run.log(step=step, loss=1.0)
"""
WORDS = (
    *("cluster=sandbox", "entry_point=tiny:main", "code.snapshot=false", "resources.timeout_min=3"),
    *("resources.nodes=2", "resources.tasks_per_node=1", "runtime.device=cpu", "observe=off"),
    "preflight.limit_s=60",
)
DYING = """
import os, signal
from pathlib import Path

import torch, torch.distributed as dist

from hpckit.testing.nvml.fake_nvml import FakeNvml


def main(config, run):
    for step in run.steps(6):
        dist.all_reduce(torch.ones(1))
        if step == 2 and run.round == 0 and run.rank == 1:
            fake = FakeNvml(
                Path(os.environ["HPCKIT_FAKE_NVML"]), node=os.environ["SLURMD_NODENAME"]
            )
            fake.profile("h100", gpus=2)
            fake.change({"g0.field.4": 1})
            os.kill(os.getpid(), signal.SIGKILL)
        run.log(step=step, loss=1.0)
"""
GPUS = 2

SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *to) {
    static int (*own)(clockid_t, struct timespec *);
    if (!own) own = dlsym(RTLD_NEXT, "clock_gettime");
    int code = own(clock, to);
    const char *here = getenv("SLURMD_NODENAME"), *wrong = getenv("SKEWED_NODE");
    int skewed = here && wrong && !strcmp(here, wrong);
    if (!code && clock == CLOCK_REALTIME && skewed) to->tv_sec += 300;
    return code;
}
"""


class Faults:
    """Nodes whose GPUs, clocks and folders a test breaks, and a project to launch there."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.project = Project(folder / "project")
        self.project.create()
        self.project.write("tiny.py", TRAIN)
        (folder / "gpus").mkdir()
        self.fakes = {node: FakeNvml(folder / "gpus", node=node) for node in sandbox.nodes}
        for fake in self.fakes.values():
            fake.profile("h100", gpus=GPUS)
        fake.build()
        self.variables = {"LD_LIBRARY_PATH": folder / "gpus", "HPCKIT_FAKE_NVML": folder / "gpus"}

    def launch(self, *words: str) -> dict[str, Any]:
        """Launch, wait for the end, and return what `status --json` says of the run."""
        seen = [f"+cluster.env.{name}={value}" for name, value in self.variables.items()]
        done = self.project.hpckit("launch", *WORDS, *seen, *words, "--wait")
        (run,) = self.project.look()["runs"]
        assert run["state"] == "completed", done.stdout
        return dict(run)

    @contextlib.contextmanager
    def fast(self, *nodes: str) -> Iterator[None]:
        """Let only these nodes have the feature `fast`."""
        where = f"nodename={','.join(nodes)}"
        self.sandbox.slurm("scontrol", "update", where, "features=fast", "activefeatures=fast")
        try:
            yield
        finally:
            self.sandbox.slurm("scontrol", "update", where, "features=", "activefeatures=")

    @contextlib.contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """Let Slurm start nothing on a node."""
        where = f"nodename={node}"
        self.sandbox.slurm("scontrol", "update", where, "state=drain", "reason=test")
        try:
            yield
        finally:
            self.sandbox.slurm("scontrol", "update", where, "state=resume")

    def known_bad(self, node: str) -> None:
        """Let an earlier run have found a node to be unhealthy."""
        found = NodeIncident(node=node, at=datetime.now(UTC), kind=IncidentKind.unhealthy, run="earlier.0")
        self.project.outputs.mkdir(exist_ok=True)
        append_node_incident(self.project.outputs, found)

    def on_gpus(self, *words: str) -> dict[str, Any]:
        """Launch with GPUs, which preflight inspects unless told otherwise."""
        gpus = (f"resources.gpus_per_node={GPUS}", "resources.exclusive=true")
        return self.launch(*gpus, *words)


@pytest.fixture
def faults(sandbox: Sandbox, tmp_path: Path) -> Faults:
    """Return the nodes of the sandbox with fake GPUs that a test may break."""
    return Faults(sandbox, tmp_path)


def verdicts(run: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return the verdict on each node, with the checks of its critical findings."""
    return {
        one["node"]: (
            one["verdict"],
            [each["check"] for each in one["findings"] if each["verdict"] == "crit"],
        )
        for one in run["preflight"]
    }


TIMED = frozenset({"run folder"})
"""What a healthy node may be warned of, on a machine that is busy with other tests."""


def of_healthy_nodes(run: dict[str, Any], bad: str) -> list[dict[str, Any]]:
    """Return what was found on all nodes but one, apart from how long something took."""
    return [
        finding
        for one in run["preflight"]
        for finding in one["findings"]
        if one["node"] != bad and finding["check"] not in TIMED
    ]


def bad_memory(fake: FakeNvml) -> None:
    """Let a GPU have uncorrectable memory errors."""
    fake.change({"g1.field.4": 3})


def narrow_link(fake: FakeNvml) -> None:
    """Let an NVLink of a GPU be down."""
    fake.change({"g0.nvlinks_down": 1})


def missing_gpu(fake: FakeNvml) -> None:
    """Let the node have one GPU less than a job asks for."""
    fake.profile("h100", gpus=GPUS - 1)


@pytest.mark.parametrize(
    ("breaks", "check"),
    [pytest.param(bad_memory, "ecc", marks=pytest.mark.main), (narrow_link, "nvlink"), (missing_gpu, "GPUs")],
)
def test_spare_takes_the_place_of_a_node_with_a_bad_gpu(
    faults: Faults, breaks: Callable[[FakeNvml], None], check: str
) -> None:
    """The run starts on the other nodes at once: one round, one attempt, no failure."""
    first = faults.sandbox.nodes[0]
    breaks(faults.fakes[first])
    run = faults.on_gpus("resources.spare_nodes=1")
    found = verdicts(run)
    assert found.pop(first) == ("crit", [check])
    assert len(found) == 2
    assert not of_healthy_nodes(run, first)
    assert sorted(run["nodes"]) == sorted(found)
    assert (run["attempt"], run["round"]) == (1, 0)


@thorough
@pytest.mark.timeout(600)
def test_spare_takes_the_place_of_a_node_with_a_slow_link(faults: Faults) -> None:
    """Nodes add with their neighbours: one whose network was slowed down is found by its peers."""
    bad = faults.sandbox.nodes[1]
    faults.sandbox.act("slow-link", bad)
    try:
        words = ("preflight=medium", "preflight.limit_s=120", "resources.spare_nodes=1")
        run = faults.launch(*words, "resources.nodes=3", "resources.cpus_per_task=1")
    finally:
        faults.sandbox.act("heal-node", bad)
    found = verdicts(run)
    assert found.pop(bad) == ("crit", ["network"])
    assert {level for level, _ in found.values()} <= {"ok", "warn"}
    assert bad not in run["nodes"]
    assert (run["attempt"], run["round"]) == (1, 0)


@thorough
@pytest.mark.main
def test_run_without_a_spare_is_requeued_without_the_bad_node(faults: Faults) -> None:
    """It completes elsewhere, in its second attempt, and says why."""
    first = faults.sandbox.nodes[0]
    bad_memory(faults.fakes[first])
    run = faults.on_gpus()
    assert run["attempt"] == 2
    assert first not in run["nodes"]
    (interruption,) = run["goodput"]["history"]
    assert (interruption["cause"], interruption["node"]) == ("unhealthy", first)
    assert "3 uncorrectable memory errors" in interruption["message"]
    (known,) = faults.project.json("nodes")["nodes"]
    assert (known["node"], known["incidents"][0]["kind"]) == (first, "unhealthy")
    script = faults.project.hpckit("launch", *WORDS, "--dry-run").stdout
    assert f"#SBATCH --exclude={first}" in script
    taken = faults.project.hpckit("launch", *WORDS, "preflight.avoid=false", "--dry-run").stdout
    assert "--exclude" not in taken
    all_nodes = faults.project.hpckit("launch", *WORDS, "resources.nodes=4", "--dry-run").stdout
    assert "--exclude" not in all_nodes


def test_node_that_fails_in_training_is_inspected_again(faults: Faults) -> None:
    """A rank is killed as its GPU's memory fails: the spare takes over, and the reason is known."""
    faults.project.write("tiny.py", DYING)
    run = faults.on_gpus("resources.spare_nodes=1")
    (failure,) = run["goodput"]["history"]
    assert (failure["cause"], run["round"]) == ("signal", 1)
    bad = failure["node"]
    assert verdicts(run)[bad] == ("crit", ["ecc"])
    assert bad not in run["nodes"]


def test_run_that_can_have_no_other_node_warns_and_continues(faults: Faults) -> None:
    """Without requeues and spares a bad node is better than none; the warning names it."""
    for fake in faults.fakes.values():
        bad_memory(fake)
    run = faults.on_gpus("recovery=never")
    assert (run["attempt"], run["round"]) == (1, 0)
    assert "the run can have no other nodes" in str(run["warnings"])


@pytest.mark.parametrize("restarts", [[], ["++recovery.restarts.unhealthy=2"]])
def test_run_on_the_only_node_it_may_have_trains_there(faults: Faults, restarts: list[str]) -> None:
    """It asks for another once, gets its own again, and trains on it with a warning."""
    first = faults.sandbox.nodes[0]
    bad_memory(faults.fakes[first])
    run = faults.on_gpus("resources.nodes=1", f"resources.nodelist={first}", *restarts)
    assert (run["attempt"], run["nodes"]) == (2, [first])
    assert "the run can have no other nodes" in str(run["warnings"])


def test_run_where_all_nodes_are_bad_trains(faults: Faults) -> None:
    """When all have had their turn, the last ones are taken."""
    for fake in faults.fakes.values():
        bad_memory(fake)
    run = faults.on_gpus()
    assert run["attempt"] == 3
    assert "the run can have no other nodes" in str(run["warnings"])


def test_node_that_the_job_cannot_do_without_is_not_left_out(faults: Faults) -> None:
    """Only two nodes have the feature that it asks for: it trains, and does not wait for ever."""
    first, second = faults.sandbox.nodes[:2]
    bad_memory(faults.fakes[first])
    with faults.fast(first, second):
        run = faults.on_gpus("resources.constraint=fast")
    assert (run["attempt"], sorted(run["nodes"])) == (2, [first, second])
    assert "the run can have no other nodes" in str(run["warnings"])


def test_drained_node_does_not_take_a_bad_nodes_place(faults: Faults) -> None:
    """A run on all nodes that are up goes on with them."""
    bad_memory(faults.fakes[faults.sandbox.nodes[0]])
    with faults.drained(faults.sandbox.nodes[-1]):
        run = faults.on_gpus("resources.nodes=3")
    assert run["attempt"] == 2
    assert "the run can have no other nodes" in str(run["warnings"])


def test_history_keeps_no_launch_from_starting(faults: Faults) -> None:
    """Whatever chooses the nodes of a job: what starts without the history starts with it."""
    first, *_, last = faults.sandbox.nodes
    faults.known_bad(first)

    def script(*words: str) -> str:
        return faults.project.hpckit("launch", *WORDS, *words, "--dry-run").stdout

    assert f"--exclude={first}" in script()
    for words in (
        ["resources.nodes=3", f"resources.exclude={last}"],
        *([f"+resources.additional_parameters.{name}={last}"] for name in ("exclude", "x")),
        *([f"+resources.additional_parameters.{name}={first}"] for name in ("nodelist", "w")),
    ):
        assert first not in script(*words).replace(f"--nodelist={first}", "").replace(f"--w={first}", ""), (
            words
        )
    with faults.fast(*faults.sandbox.nodes[:2]):
        assert "--exclude" not in script("resources.constraint=fast")
    with faults.drained(last):
        assert "--exclude" not in script("resources.nodes=3")


def test_node_that_is_lost_during_preflight_is_known(faults: Faults) -> None:
    """A spare takes its place at once, and later launches know what happened."""
    second = faults.sandbox.nodes[1]
    for fake in faults.fakes.values():
        fake.change({"hang.nvmlDeviceGetCount_v2": 8})

    def kill() -> None:
        deadline = time.monotonic() + 60
        while second not in inspected_nodes() and time.monotonic() < deadline:
            time.sleep(0.2)
        faults.sandbox.act("kill-node", second)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run = faults.on_gpus("resources.spare_nodes=1")
    finally:
        killer.join()
        faults.sandbox.act("revive-node", second)
    assert second not in run["nodes"]
    (known,) = faults.project.json("nodes")["nodes"]
    assert (known["node"], known["incidents"][0]["kind"]) == (second, "lost")


def inspected_nodes() -> set[str]:
    """Return the nodes that are being inspected."""
    return {node for node in ("n1", "n2", "n3", "n4") if any(processes(node, b"preflight.probe"))}


def test_skewed_clock_is_avoided(faults: Faults) -> None:
    """A node whose clock is five minutes ahead of the others is replaced by the spare."""
    source, library = faults.folder / "skew.c", faults.folder / "skew.so"
    source.write_text(SKEW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    second = faults.sandbox.nodes[1]
    faults.variables |= {"LD_PRELOAD": library, "SKEWED_NODE": Path(second)}
    run = faults.launch("preflight=fast", "resources.spare_nodes=1")
    assert verdicts(run)[second] == ("crit", ["clock"])
    assert second not in run["nodes"]


@contextlib.contextmanager
def full_shared_memory(name: str) -> Iterator[None]:
    """Let /dev/shm of a node be small, and full."""
    node = require_recorded_options().find_node(name)
    pid = process.find_recorded_pid(daemons.slurmd_record_name(node))
    inside = ["nsenter", f"--target={pid}", "--mount", "--root", "sh", "-c"]
    fill = "mount -t tmpfs -o size=80m tmpfs /dev/shm && head -c 60M /dev/zero >/dev/shm/left"
    subprocess.run([*inside, fill], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "umount /dev/shm"], check=True)


@thorough
@pytest.mark.main
def test_full_shared_memory_is_avoided(faults: Faults) -> None:
    """What an earlier job left in /dev/shm makes the node useless: the spare takes its place."""
    first = faults.sandbox.nodes[0]
    with full_shared_memory(first):
        run = faults.launch("preflight=fast", "resources.spare_nodes=1")
    assert verdicts(run)[first] == ("crit", ["shared memory"])
    assert first not in run["nodes"]


def processes(node: str, word: bytes) -> Iterator[int]:
    """Yield the processes of this node with a word in their command."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes().split(b"\0")
                if word in command and f"SLURMD_NODENAME={node}".encode() in environ:
                    yield int(entry.name)


@contextlib.contextmanager
def slow(node: str) -> Iterator[None]:
    """Let what measures this node run in an eighth of the time only."""
    over = threading.Event()

    def hold_up() -> None:
        while not over.is_set():
            for pid in processes(node, b"/store\0"):  # of those that measure one node
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.07)
                    os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_slow_node_is_avoided(faults: Faults) -> None:
    """At the level medium, a node that computes at a fraction of its peers' speed is replaced."""
    first = faults.sandbox.nodes[0]
    with slow(first):
        run = faults.launch("preflight=medium", "resources.spare_nodes=2")
    verdict, checks = verdicts(run)[first]
    assert verdict == "crit"
    assert {*checks} <= {"compute", "memory bandwidth"}
    assert first not in run["nodes"]
