"""Runs on a real Slurm that grow by satellite jobs, and shrink: they lose no step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.conftest import Sandbox
from integration.training import Training

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

STEPS = 160
PATIENCE_S = 240.0
WHERE = ("experiment=charlm", "entry_point=paced:train", "cluster=sandbox", "resources=cpu_pair")
CHARLM = (
    *("+pause_s=0.2", f"steps={STEPS}", "layers=2", "width=48", "batch_size=8", "context=64"),
    *("lr=0.001", "evaluate_every=1000", "training_kb=256", "log_every=1"),
    "checkpoint.interval_steps=5",
)
TWO_NODES = ("resources.nodes=2", "resources.tasks_per_node=1")
SHARDED = ("parallel=layout", "parallel.shard=2", "parallel.replicate=rest")
PACED = """
import time
from dataclasses import dataclass
from typing import Any

from hpckit.experiments import charlm


@dataclass
class Paced:
    run: Any
    pause_s: float

    def __getattr__(self, name):
        return getattr(self.run, name)

    def steps(self, total, **options):
        for step in self.run.steps(total, **options):
            yield step
            time.sleep(self.pause_s)


def train(config, run):
    charlm.train(config, Paced(run, config.pause_s))
"""
"""charlm that waits more than it computes, so that it leaves the processors to others."""
SLOW = ("+params.pause_s=0.25", "+params.steps=280")
HOLD = ("--nodes=2", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 300")
SHORT = ("+params.pause_s=0.25", "+params.steps=100")

ORDER = """
import json, time, torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset


def main(config, run):
    torch.set_num_threads(1)
    batches = run.batches(TensorDataset(torch.arange(37)), batch_size=12)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.state(model=model, optimizer=optimizer)
    with (run.folder / f"rows-{run.round}-{run.rank}.jsonl").open("a") as file:
        for step in run.steps(config.params.steps):
            (rows,) = next(batches)
            print(json.dumps([step, rows.tolist()]), file=file, flush=True)
            inputs = torch.sin(rows[:, None] * torch.arange(1, 5))
            loss = (model(inputs) - inputs.roll(1, dims=1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=run.mean(float(loss)))
            time.sleep(config.params.pause_s)
"""


def launch_charlm(training: Training, *words: str) -> None:
    """Launch it, paced, with these words."""
    training.project.write("paced.py", PACED)
    training.project.json("launch", *WHERE, *CHARLM, *words)


def sample_order(training: Training) -> dict[int, list[int]]:
    """Return the samples of each step, as all ranks of the latest round that did it had them."""
    found: dict[int, list[int]] = {}
    for number, nodes in enumerate(training.nodes_by_round()):
        every = []
        for rank in range(len(nodes)):
            lines = (training.folder / f"rows-{number}-{rank}.jsonl").read_text().splitlines()
            every.append(dict(json.loads(line) for line in lines))
        for step in every[0]:
            found[step] = [row for rank in every for row in rank[step]]
    return found


def satellites(training: Training) -> list[dict[str, Any]]:
    """Return what `status` says of the satellites of the run."""
    return list(training.run["satellites"])


def grow(training: Training, *words: str) -> str:
    """Have the run grow by one replica; return the job that brings it."""
    return str(training.project.json("grow", "--replicas", "1", *words)["job"])


def wait_for_nodes(training: Training, count: int) -> None:
    """Wait until the latest round has so many nodes, and has done a step."""
    training.wait(lambda: len(training.nodes()) == count, f"the run has {count} nodes")
    number = len(training.nodes_by_round()) - 1
    training.wait(
        lambda: any(event["round"] == number for event in training.events("step_reached")),
        f"round {number} steps",
    )


@pytest.fixture(scope="module")
def undisturbed(sandbox: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of charlm on two nodes to which nothing happens."""
    calm = Training.create(sandbox, tmp_path_factory.mktemp("calm"))
    launch_charlm(calm, *TWO_NODES, *SHARDED)
    calm.completed(patience_s=PATIENCE_S)
    return calm.losses


@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["scancel", "preempt"])
def test_satellite_brings_a_replica_and_takes_it_away(
    training: Training, undisturbed: dict[int, float], end: str
) -> None:
    """The run grows by a replica of two nodes, goes on without it, and learns the same."""
    launch_charlm(training, *TWO_NODES, *SHARDED)
    training.wait_for_step(10)
    own = training.nodes()
    job = grow(training)
    wait_for_nodes(training, 4)
    assert training.nodes()[:2] == own
    (shown,) = satellites(training)
    assert (shown["job"], shown["state"], shown["replicas"]) == (job, "running", 1)
    assert sorted(shown["nodes"]) == sorted(training.nodes()[2:])
    if end == "scancel":
        training.sandbox.slurm("scancel", job)
    else:
        where = f"--nodelist={','.join(shown['nodes'])}"
        training.sandbox.slurm("sbatch", "--partition=urgent", where, *HOLD[:-1], "--wrap=sleep 1")
    training.wait(lambda: training.nodes() == own, "the run continues on its own nodes")
    training.completed(patience_s=PATIENCE_S)
    assert training.causes() == ["resized", "resized", None]
    assert training.steps == list(range(STEPS))
    assert training.losses == pytest.approx(undisturbed, rel=1e-4)


@pytest.mark.main
def test_satellite_ends_with_the_run(training: Training) -> None:
    """Its job ends with exit code 0 once the run has completed on all nodes."""
    training.launch(*SHORT)
    training.wait_for_step(6)
    job = grow(training, "--time", "5")
    wait_for_nodes(training, 3)
    training.completed()
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite has ended")
    said = training.sandbox.slurm("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in said
    assert "ExitCode=0:0" in said
    assert training.causes() == ["resized", None]
    assert training.steps == list(range(100))


def test_run_shrinks_and_lets_the_satellite_go(training: Training) -> None:
    """Its own node stands as a spare then, and comes back without another job."""
    training.launch(*SLOW)
    training.wait_for_step(6)
    job = grow(training)
    wait_for_nodes(training, 3)
    asked = training.project.json("shrink", "--replicas", "1")
    assert (asked["replicas"], asked["wanted"]) == (3, 1)
    wait_for_nodes(training, 1)
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite was let go")
    again = training.project.json("grow", "--replicas", "1")
    assert (again["standing"], again["job"]) == (1, None)
    wait_for_nodes(training, 2)
    training.completed()
    assert training.causes() == ["resized", "resized", "resized", None]
    assert training.steps == list(range(280))


def test_lost_replica_comes_back_by_itself(training: Training) -> None:
    """With recovery.regrow a satellite is submitted for it, and the run grows after a save."""
    training.launch(
        *("+params.pause_s=0.3", "+params.steps=400", "resources.min_nodes=1"), "recovery.regrow=true"
    )
    training.wait_for_step(12)
    first, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    wait_for_nodes(training, 1)
    wait_for_nodes(training, 2)
    assert training.nodes()[0] == first
    assert lost not in training.nodes()
    training.completed()
    assert training.causes() == ["node_lost", "resized", None]
    (added,) = [event for event in training.events("agent_joined") if event["satellite"]]
    assert added["node"] == training.nodes()[1]


@pytest.mark.timeout(900)
def test_sharded_replica_is_completed_when_its_node_comes_back(
    sandbox: Sandbox, training: Training, tmp_path: Path
) -> None:
    """HSDP on all four nodes: one dies and comes back, the other of its replica waits for it."""
    shape = ("resources.nodes=4", "resources.tasks_per_node=1", "resources.min_nodes=2", *SHARDED)
    calm = Training.create(sandbox, tmp_path / "calm")
    launch_charlm(calm, *shape)
    calm.completed(patience_s=PATIENCE_S)
    launch_charlm(training, *shape, "recovery.regrow=true", "pause_s=1.0")
    training.wait_for_step(12)
    first, second, third, lost = training.nodes()
    whole = training.run["layout"]
    training.strike(f"kill_node node={lost}")
    wait_for_nodes(training, 2)
    assert training.nodes() == (first, second)
    training.wait(lambda: satellites(training), "a satellite was submitted", 120)
    (waiting,) = satellites(training)
    assert (waiting["state"], waiting["replicas"]) == ("pending", 1)
    training.sandbox.act("revive-node", lost)
    wait_for_nodes(training, 4)
    assert training.nodes() == (first, second, third, lost)
    training.completed(patience_s=PATIENCE_S)
    assert training.run["layout"] == whole
    assert training.causes() == ["node_lost", "resized", None]
    (added,) = [event for event in training.events("agent_joined") if event["satellite"]]
    assert added["node"] == lost, "one node was brought"
    assert {*training.steps} == {*range(STEPS)}
    assert len(training.steps) <= STEPS + 5, "what was not saved is done again"
    assert training.losses == pytest.approx(calm.losses, rel=2e-5)


def test_cancel_takes_a_waiting_satellite_along(training: Training) -> None:
    """What waits in the queue for nodes is cancelled with its run."""
    training.launch(*SLOW)
    training.wait_for_step(6)
    hold = training.sandbox.slurm("sbatch", "--parsable", *HOLD).strip()
    job = grow(training)
    assert satellites(training)[0]["state"] == "pending"
    done = training.project.hpckit("rm", "--yes", training.run["run"].partition(".")[0])
    assert done.returncode != 0
    assert training.project.hpckit("cancel").returncode == 0
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite was cancelled")
    training.sandbox.slurm("scancel", hold)


@pytest.mark.timeout(500)
def test_run_leaves_a_satellite_before_its_time_limit(training: Training) -> None:
    """Slurm tells the satellite ahead: the run saves, and goes on without it; no step is lost."""
    training.launch(
        *("+params.pause_s=0.3", "+params.steps=400", "resources.timeout_min=30"),
        "runtime.save_before_timeout_s=20",
    )
    training.wait_for_step(6)
    own = training.nodes()
    job = grow(training, "--time", "2")
    wait_for_nodes(training, 3)
    training.wait(lambda: training.nodes() == own, "the run is on its own nodes", 150)
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite has ended")
    assert "JobState=COMPLETED" in training.sandbox.slurm("scontrol", "show", "job", job)
    (gone,) = training.events("satellite_left")
    assert gone["reason"].startswith("it was told to stop")
    training.completed(patience_s=PATIENCE_S)
    assert training.causes() == ["resized", "resized", None]
    assert training.steps == list(range(400))


@pytest.mark.timeout(500)
def test_samples_and_losses_do_not_depend_on_the_sizes_of_a_run(
    sandbox: Any, training: Training, tmp_path: Path
) -> None:
    """Four, three, two and four ranks: each step has the samples of a run of four, in its order."""
    calm = Training.create(sandbox, tmp_path / "calm")
    words = ("experiment=function", "entry_point=order:main", "cluster=sandbox")
    size = ("resources.nodes=4", "resources.min_nodes=2", "checkpoint.interval_steps=5")
    for one, pause_s in ((calm, 0.0), (training, 0.2)):
        one.project.write("order.py", ORDER)
        one.project.json("launch", *words, *size, "+params.steps=250", f"+params.pause_s={pause_s}")
        if one is calm:
            calm.completed(patience_s=PATIENCE_S)
    training.wait_for_step(6)
    for replicas in (3, 2):
        training.project.json("shrink", "--replicas", str(replicas))
        wait_for_nodes(training, replicas)
    assert training.project.json("grow", "--replicas", "2")["standing"] == 2
    wait_for_nodes(training, 4)
    training.completed(patience_s=PATIENCE_S)
    assert [len(nodes) for nodes in training.nodes_by_round()] == [4, 3, 2, 4]
    assert training.causes() == ["resized", "resized", "resized", None]
    assert sample_order(training) == sample_order(calm)
    assert sorted(sample_order(training)) == list(range(250))
    assert training.losses == pytest.approx(calm.losses, rel=1e-4, abs=1e-6)


@pytest.mark.timeout(500)
def test_lost_node_of_the_only_replica_leads_to_another_layout(
    training: Training, undisturbed: dict[int, float]
) -> None:
    """The run goes on in the same allocation on the node that is left, and learns the same."""
    listed = ("resources.min_nodes=1", "parallel.fallback=[{replicate: 1, shard: rest}]")
    launch_charlm(training, *TWO_NODES, *SHARDED, *listed)
    training.wait_for_step(20)
    first, lost = training.nodes()
    assert training.run["layout"]["shard"] == 2
    training.strike(f"kill_node node={lost}")
    run = training.completed(patience_s=PATIENCE_S)
    assert training.nodes_by_round()[-1] == (first,)
    assert (run["layout"]["replicate"], run["layout"]["shard"]) == (1, 1)
    assert training.causes() == ["node_lost", None]
    assert training.losses == pytest.approx(undisturbed, rel=1e-4)


def test_waiting_satellite_is_cancelled_when_its_run_ends(training: Training) -> None:
    """Nothing of it is left in the queue, and what it waited for goes on."""
    training.launch("+params.pause_s=0.2", "+params.steps=40")
    training.wait_for_step(6)
    hold = training.sandbox.slurm("sbatch", "--parsable", *HOLD).strip()
    job = grow(training)
    training.completed()
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite was cancelled")
    assert "JobState=CANCELLED" in training.sandbox.slurm("scontrol", "show", "job", job)
    assert training.sandbox.state_of_job(hold)
    training.sandbox.slurm("scancel", hold)


def test_satellite_of_an_ended_run_leaves_at_once(training: Training) -> None:
    """A satellite that is started too late, by hand, says so, and ends with exit code 0."""
    training.launch(*SHORT)
    training.wait_for_step(6)
    grow(training)
    wait_for_nodes(training, 3)
    training.completed()
    script = training.project.launch_folder() / "job-1.sbatch"
    job = training.sandbox.slurm("sbatch", "--parsable", str(script)).strip()
    training.wait(lambda: not training.sandbox.state_of_job(job), "the satellite has ended")
    (log,) = training.project.launch_folder().glob(f"logs/job-*-{job}.log")
    assert "has ended: there is nothing to join" in log.read_text()
    assert "ExitCode=0:0" in training.sandbox.slurm("scontrol", "show", "job", job)


def test_dry_run_prints_the_script_that_is_submitted(training: Training) -> None:
    """The same text, byte for byte; and without --dry-run nothing else is handed in."""
    training.launch(*SLOW)
    training.wait_for_step(6)
    words = ("--replicas", "1", "--dry-run", "--json")
    done = training.project.hpckit("grow", *words)
    (script,) = json.loads(done.stdout)["scripts"]
    grow(training)
    folder = training.project.launch_folder()
    assert (folder / "job-1.sbatch").read_text() == script["text"]


@pytest.mark.timeout(500)
def test_run_resumes_in_another_layout(training: Training, undisturbed: dict[int, float]) -> None:
    """Begun as fsdp, ended by its user, and resumed as tensor: no step is lost, losses agree."""
    launch_charlm(training, "resources.nodes=1", "resources.tasks_per_node=2", "parallel=fsdp")
    training.wait_for_step(20)
    assert training.project.hpckit("cancel").returncode == 0
    training.wait(lambda: training.run["state"] == "cancelled", "the run was cancelled")
    assert training.run["layout"]["shard"] == 2
    done = training.project.hpckit("resume", ".0", "parallel=tensor")
    assert done.returncode == 0, done.stderr
    run = training.over(PATIENCE_S)
    assert (run["state"], run["attempt"], run["layout"]["tensor"]) == ("completed", 2, 2)
    assert training.steps == list(range(STEPS))
    assert training.losses == pytest.approx(undisturbed, rel=1e-3)
