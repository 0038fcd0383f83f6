"""Promises of a supervisor whose run grows and shrinks: real agents on several "nodes" of this one.

A stand-in for srun starts the run's own agents; a satellite's agent is started by the test, as the
script of its job does it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fork_server_session import fork_server_of_job
from tiers import thorough
from waiting import LIMIT_S

from hpckit.model import events
from hpckit.model.elastic import Resize, ResizeAnswer, ResizeRequest
from hpckit.model.launch import Checkpoint, Cluster, ClusterKind, Recovery, Resources, Runtime
from hpckit.model.parallel.settings import FallbackLayout, Parallel
from hpckit.model.plain import to_plain
from hpckit.model.settings import Observe
from hpckit.model.states import DrainAction, RunState
from hpckit.model.telemetry.vocabulary import TelemetryRow
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.store import append_json_lines, read_events
from hpckit.record.telemetry import list_telemetry_nodes, read_telemetry_segment
from hpckit.runtime.environ import FORK_SERVER, SATELLITE
from hpckit.runtime.mailbox import resize_mailbox
from hpckit.views.telemetry import read_resource_usage_of_run

pytestmark = pytest.mark.training

SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
count = int(next(word for word in words if word.startswith("--nodes=")).partition("=")[2])
command = words[next(at for at, word in enumerate(words) if not word.startswith("-")):]
nodes = [os.environ | {{
    "SLURMD_NODENAME": f"127.0.0.{{at + 1}}", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(at),
    "SLURM_STEP_NUM_TASKS": str(count), "SLURM_LOCALID": "0", "SLURM_NODEID": str(at),
    "SLURM_STEP_NUM_NODES": str(count), "SLURM_STEP_TASKS_PER_NODE": f"1(x{{count}})",
}} for at in range(count)]
agents = [subprocess.Popen(command, env=environ) for environ in nodes]
sys.exit(max(agent.wait() for agent in agents))
"""

SCONTROL = f"""#!{sys.executable}
import pathlib, sys
drained = pathlib.Path(__file__).with_name("drained")
for node in sys.argv[-1].split(","):
    state = "MIXED+DRAIN" if drained.exists() and drained.read_text() == node else "MIXED"
    print(f"NodeName={{node}} State={{state}} ThreadsPerCore=1 Reason=NHC: fans [root@2026-01-01]")
"""

JOB = "9"
NODES = ("127.0.0.1", "127.0.0.2")
"""Names that every machine resolves, without a network."""
ONE, TWO = NODES
THREE, FOUR = "127.0.0.3", "127.0.0.4"

TRAIN = """
import time, torch

def main(config, run):
    weight = torch.nn.Linear(1, 1)
    run.state(model=weight)
    done = run.folder / "done"
    run.share(3)
    for step in run.steps(100_000):
        time.sleep(0.02)
        if run.mean(float(done.exists())) > 0:
            return
"""

PLANNED = """
import time, torch
from torch import nn
from hpckit import Plan

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def error(found, wanted):
    return ((found - wanted) ** 2).mean()

def main(config, run):
    model = run.parallelize(Model, Plan(units="blocks.*"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.state(model=model, optimizer=optimizer)
    done = run.folder / "done"
    share = run.share(6)
    rows = torch.arange(12.0).reshape(6, 2)[share.rows]
    for step in run.steps(100_000):
        time.sleep(0.02)
        optimizer.zero_grad()
        run.train_step(model, rows, rows, loss=error, share=share)
        optimizer.step()
        if run.mean(float(done.exists())) > 0:
            return
"""


def waited(ready: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """Return what `ready` returns once that is true."""
    deadline = time.monotonic() + limit_s
    while not (found := ready()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


@dataclass(slots=True)
class Elastic:
    """A running attempt of a run of one node for each replica, and its satellites."""

    launch: Launch
    process: subprocess.Popen[str]
    drained: Path
    """A file with the name of the node that is being drained."""
    satellites: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    @property
    def paths(self) -> AttemptPaths:
        """The attempt's folder."""
        return LaunchPaths(self.launch.folder).run(0).attempt(1)

    def events(self) -> list[events.Event]:
        """Return what the supervisor recorded."""
        return list(read_events(self.paths.events))

    def rounds(self) -> list[tuple[str, ...]]:
        """Return the nodes of each round."""
        return [event.nodes for event in self.events() if isinstance(event, events.RoundStarted)]

    def saved(self) -> None:
        """Wait until the latest round has saved, so that it may leave."""
        number = len(self.rounds()) - 1
        waited(
            lambda: any(
                isinstance(event, events.CheckpointSaved) and event.round == number for event in self.events()
            ),
            f"round {number} saved",
        )

    def wait_for(self, *nodes: str) -> None:
        """Wait until the latest round is on these nodes, and has saved."""
        waited(lambda: self.rounds()[-1] == nodes, f"a round on {nodes}: {self.rounds()}")
        self.saved()

    def satellite(self, job: str, node: str) -> subprocess.Popen[bytes]:
        """Start the agent of a satellite job on a node."""
        words = [sys.executable, "-P", "-m", "hpckit.runtime.agent", str(self.launch.folder)]
        agent = subprocess.Popen(
            [*words, "0", "1"],
            env={
                **os.environ,
                SATELLITE: job,
                "SLURMD_NODENAME": node,
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "0",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_STEP_TASKS_PER_NODE": "1",
            },
        )
        self.satellites.append(agent)
        return agent

    def lose(self, node: str) -> None:
        """Have nothing come from a node any more."""
        joined = [event for event in self.events() if isinstance(event, events.AgentJoined)]
        (agent,) = [one.pid for one in joined if one.node == node]
        self.stopped.append(agent)
        os.kill(agent, signal.SIGSTOP)

    def layouts(self) -> list[str]:
        """Return what the ranks of each round said of their layout."""
        told = [event for event in self.events() if isinstance(event, events.LayoutReported)]
        return [str(one.report.layout) for one in told]

    def resize(self, resize: Resize, replicas: int) -> ResizeAnswer:
        """Ask the supervisor, as the verbs do, and return its answer."""
        at = datetime.now(UTC)
        name = f"{at:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"
        request = ResizeRequest(id=name, at=at, host="h", resize=resize, replicas=replicas)
        append_json_lines(self.paths.resize_requests, to_plain(request))
        answer: ResizeAnswer = waited(
            lambda: resize_mailbox(self.paths).get_answer(name), "the supervisor answers"
        )
        return answer

    def end(self) -> None:
        """Let the run complete."""
        (LaunchPaths(self.launch.folder).run(0).folder / "done").touch()
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, output
        assert read_run_records(self.launch)[0].state is RunState.completed

    def causes(self) -> list[str | None]:
        """Return why each round ended."""
        ended = [event for event in self.events() if isinstance(event, events.RoundEnded)]
        return [None if one.failure is None else one.failure.cause for one in ended]


@pytest.fixture(scope="module")
def forks() -> Iterator[str]:
    """Return the socket of a fork server in the job of these runs."""
    with fork_server_of_job(JOB) as path:
        yield path


@pytest.fixture
def elastic(workshop: Any, ranks: Any, forks: str) -> Iterator[Callable[..., Elastic]]:
    """Return what starts a run on some nodes; afterwards nothing of it is left."""
    begun: list[Elastic] = []

    def start(
        nodes: int,
        script: str = TRAIN,
        parallel: Parallel | None = None,
        observe: Observe | None = None,
        **resources: Any,
    ) -> Elastic:
        fake = Path(workshop.project.parent / "bin")
        fake.mkdir()
        (fake / "srun").write_text(SRUN)
        (fake / "srun").chmod(0o700)
        (fake / "scontrol").write_text(SCONTROL)
        (fake / "scontrol").chmod(0o700)
        cluster = Cluster(kind=ClusterKind.slurm, bin_dir=str(fake))
        settings = ranks(1, cluster=cluster, parallel=parallel or Parallel()) | {
            "observe": observe or Observe(),
            "runtime": Runtime(
                stop_grace_s=2, rendezvous_timeout_s=20, node_timeout_s=4, drain_poll_interval_s=1
            ),
            "resources": Resources(nodes=nodes, **resources),
            "checkpoint": Checkpoint(interval_steps=10),
            "recovery": Recovery(restarts={"node_lost": 3}),
        }
        launch = workshop.freeze(script, **settings)
        names = ",".join((ONE, TWO, THREE, FOUR)[:nodes])
        of_job = {"SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": names, FORK_SERVER: forks}
        process = workshop.start(launch, **of_job)
        run = Elastic(launch, process, fake / "drained")
        begun.append(run)
        waited(lambda: run.paths.events.exists() and run.rounds(), "the first round")
        run.saved()
        return run

    yield start
    for run in begun:
        for agent in run.satellites:
            agent.kill()
            agent.wait()
        for pid in run.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.kill()
        run.process.communicate()


@thorough
def test_run_grows_by_a_satellite_and_continues_without_it(elastic: Callable[..., Elastic]) -> None:
    """Its node is a member after a planned restart; told to stop, it leaves in the same way."""
    run = elastic(2)
    agent = run.satellite("77", THREE)
    run.wait_for(ONE, TWO, THREE)
    agent.send_signal(signal.SIGTERM)
    run.wait_for(ONE, TWO)
    assert agent.wait(20) == 0, "it was let go"
    (gone,) = [event for event in run.events() if isinstance(event, events.SatelliteLeft)]
    assert (gone.node, gone.satellite) == (THREE, "77")
    assert gone.reason == "it was told to stop (SIGTERM)"
    run.end()
    assert run.causes() == ["resized", "resized", None]
    assert not [event for event in run.events() if isinstance(event, events.NodeLost)]


@thorough
def test_satellite_that_dies_is_a_lost_node(elastic: Callable[..., Elastic]) -> None:
    """The run continues on its own nodes, and the satellite that is left ends with the run."""
    run = elastic(1)
    run.satellite("77", THREE)
    last = run.satellite("78", FOUR)
    waited(lambda: {*run.rounds()[-1]} == {ONE, THREE, FOUR}, "a round of three")
    run.saved()
    run.satellites[0].kill()
    run.wait_for(ONE, FOUR)
    run.end()
    assert last.wait(20) == 0
    assert run.causes()[-2:] == ["node_lost", None]


def test_node_that_the_run_has_already_is_let_go(elastic: Callable[..., Elastic]) -> None:
    """Two agents on one node would share its devices: the second one is sent away, and told of."""
    run = elastic(1)
    agent = run.satellite("77", ONE)
    assert agent.wait(20) == 0
    said = [event.message for event in run.events() if isinstance(event, events.Warned)]
    assert [one for one in said if f"the run has {ONE} already: satellite job 77" in one]
    run.end()
    assert run.rounds() == [(ONE,)]


def test_run_shrinks_and_takes_its_nodes_back(elastic: Callable[..., Elastic]) -> None:
    """A shrink is followed or refused in words; what stands ready comes back without a job."""
    run = elastic(2)
    assert run.resize(Resize.shrink, 2).refused == "it has 2 replicas: name a smaller number"
    answer = run.resize(Resize.shrink, 1)
    assert (answer.refused, answer.replicas) == (None, 2)
    run.wait_for(ONE)
    assert run.resize(Resize.grow, 2).standing == 1
    run.wait_for(ONE, TWO)
    run.end()
    assert run.causes() == ["resized", "resized", None]


@thorough
def test_growth_beyond_the_batch_is_undone(elastic: Callable[..., Elastic]) -> None:
    """The larger round raises at once: the run continues as before, and lets the satellite go."""
    run = elastic(2)
    run.satellite("77", THREE)
    run.wait_for(ONE, TWO, THREE)
    agent = run.satellite("78", FOUR)
    waited(lambda: len(run.rounds()) == 4, "a round after the one that failed")
    run.wait_for(ONE, TWO, THREE)
    assert agent.wait(20) == 0
    run.end()
    assert run.causes() == ["resized", "resized", "resized", None]
    said = [event.message for event in run.events() if isinstance(event, events.Warned)]
    (undone,) = [one for one in said if "growing was undone" in one]
    assert "batch" in undone, undone


@thorough
def test_run_without_a_whole_replica_continues_in_another_layout(elastic: Callable[..., Elastic]) -> None:
    """It goes on from its checkpoint on the nodes that are left, and back once nodes come."""
    own = Parallel(replicate="rest", shard=3, fallback=[FallbackLayout(replicate=1, shard="rest")])
    run = elastic(3, script=PLANNED, parallel=own, min_nodes=1)
    run.lose(THREE)
    run.wait_for(ONE, TWO)
    assert run.resize(Resize.grow, 1).idle_nodes == 2, "one more makes a replica"
    run.satellite("77", FOUR)
    run.wait_for(ONE, TWO, FOUR)
    run.end()
    assert run.layouts() == ["shard 3", "shard 2", "shard 3"]
    assert run.causes() == ["node_lost", "resized", None]
    ended = [event for event in run.events() if isinstance(event, events.RoundEnded)]
    first, second, third = [(one.first_step or 0, one.step or 0) for one in ended]
    assert 0 < second[0] <= first[1] + 1, "it goes on from a checkpoint"
    assert second[1] <= third[0] <= second[1] + 1, "no step is done twice on the way back"
    said = [event.message for event in run.events() if isinstance(event, events.Warned)]
    assert "no whole replica of shard 3 on 2 nodes: the run continues as shard 2 (parallel.fallback)" in said


@thorough
def test_idle_nodes_of_a_lost_replica_are_completed_by_a_satellite(elastic: Callable[..., Elastic]) -> None:
    """A job brings only what is missing, once; it may bring back the node that was lost."""
    run = elastic(4, PLANNED, Parallel(replicate="rest", shard=2), min_nodes=2)
    run.lose(FOUR)
    run.wait_for(ONE, TWO)
    told = run.resize(Resize.grow, 1)
    assert (told.replicas, told.standing, told.idle_nodes) == (1, 0, 1)
    run.satellite("77", FOUR)
    run.wait_for(ONE, TWO, THREE, FOUR)
    run.end()
    assert run.layouts() == ["replicate 2 x shard 2", "shard 2", "replicate 2 x shard 2"]
    assert run.causes() == ["node_lost", "resized", None]


@thorough
def test_nodes_of_satellites_are_measured_once(elastic: Callable[..., Elastic]) -> None:
    """From their start to their end; a satellite that is sent away adds nothing to its node."""
    run = elastic(1, observe=Observe(interval_s=0.5, row_s=1.0))
    run.satellite("77", THREE)
    run.wait_for(ONE, THREE)
    assert run.satellite("78", THREE).wait(20) == 0
    time.sleep(2.5)
    run.end()
    assert run.satellites[0].wait(20) == 0
    assert list_telemetry_nodes(run.paths) == [ONE, THREE]
    read = list(read_telemetry_segment(run.paths.newest_telemetry_file(THREE)))
    rows = [one for one in read if isinstance(one, TelemetryRow)]
    for before, after in itertools.pairwise(rows):
        assert before.end <= after.start, "no time is in two rows"
    used = {node.node: node.seconds for node in read_resource_usage_of_run(run.launch, 0).nodes}
    (joined,) = [
        event.at
        for event in run.events()
        if isinstance(event, events.AgentJoined) and event.satellite == "77"
    ]
    assert used[THREE] == pytest.approx((rows[-1].end - joined).total_seconds(), abs=1.5)
    assert used[THREE] < used[ONE]


@thorough
def test_satellite_with_a_drained_node_is_left(elastic: Callable[..., Elastic]) -> None:
    """At a boundary, without a failure: the run has no spare, and its own nodes are not drained."""
    run = elastic(1)
    agent = run.satellite("77", THREE)
    run.wait_for(ONE, THREE)
    run.drained.write_text(THREE)
    run.wait_for(ONE)
    assert agent.wait(20) == 0, "it was let go"
    run.drained.write_text(ONE)
    told = waited(
        lambda: [event for event in run.events() if isinstance(event, events.NodeDraining)][1:],
        "its own node is asked about, too",
    )
    run.end()
    assert run.causes() == ["resized", "resized", None]
    assert run.rounds() == [(ONE,), (ONE, THREE), (ONE,)]
    (gone,) = [event for event in run.events() if isinstance(event, events.SatelliteLeft)]
    assert (gone.node, gone.reason) == (THREE, f"{THREE} is being drained (NHC: fans)")
    assert [(one.node, one.action) for one in told] == [(ONE, DrainAction.stay)]
