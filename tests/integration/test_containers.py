"""Runs in images on a real Slurm with a real Apptainer: what goes wrong is survived as outside of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from containers_image import container_words, make_image, pack_image
from containers_world import find_apptainer_or_skip
from integration.conftest import Sandbox
from integration.test_faults_frozen import processes
from integration.test_faults_time import STEPS as MANY
from integration.training import STEPS, Training, first
from tiers import thorough
from waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

SLOWLY = "+params.pause_s=0.2"
HELD = (SLOWLY, "+params.hold=30")


@pytest.fixture(autouse=True)
def _outside_of_a_chroot(sandbox: Sandbox) -> None:
    """Skip where Slurm's release is in a chroot, whose root is no mount."""
    if sandbox.options["release"] != "22.05":
        pytest.skip("Apptainer does not start in a chroot")


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """Return the words for a run in an image."""
    return container_words(find_apptainer_or_skip(), make_image(tmp_path / "image"))


def left_behind(training: Training) -> list[str]:
    """Return the processes of a launch's containers."""
    folder = os.fsencode(training.project.launch_folder())
    found = []
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"squashfuse" in told[0] or (folder in told[1] and b"supervise" not in told[0]):
            found.append(os.fsdecode(told[0]))
    return found


def nothing_is_left(training: Training) -> None:
    """Wait until no process of the launch is there."""
    until(lambda: not left_behind(training))


def test_killed_rank_is_replaced_in_its_container(
    training: Training, calm: dict[int, float], tmp_path: Path
) -> None:
    """In a SquashFS image: a new round, and the container is not started again."""
    image = pack_image(make_image(tmp_path / "image"), tmp_path / "image.sqsh")
    words = container_words(find_apptainer_or_skip(), image)
    training.launch(*words, "container.options=[--userns]", "chaos=['kill rank=1 step=17']")
    run = training.completed()
    assert training.causes() == ["signal", None]
    assert training.losses == first(calm, STEPS)
    assert run["container"]["image"] == str(image)
    assert len(training.events("container_checked")) == len(training.events("agent_joined")) == 2
    nothing_is_left(training)


def test_killed_agent_is_replaced(training: Training, calm: dict[int, float], words: tuple[str, ...]) -> None:
    """A new step in the same allocation starts its container again."""
    training.launch(*words, *HELD)
    training.wait_for_step(12)
    os.kill(processes(training, "hpckit.runtime.agent")[training.nodes()[1]], signal.SIGKILL)
    training.go()
    training.completed()
    assert training.causes() == ["launcher_lost", None]
    assert training.losses == first(calm, STEPS)
    nothing_is_left(training)


@thorough
def test_dead_node_is_replaced_by_the_spare(
    training: Training, calm: dict[int, float], words: tuple[str, ...]
) -> None:
    """The spare's container is there already."""
    training.launch(*words, *HELD, "resources.spare_nodes=1")
    training.wait_for_step(12)
    _, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    training.go()
    training.completed()
    assert training.causes() == ["node_lost", None]
    assert training.losses == first(calm, STEPS)


@thorough
def test_run_outlives_its_supervisor(
    training: Training, calm: dict[int, float], words: tuple[str, ...]
) -> None:
    """The last will is run on the host, where Slurm's commands are."""
    training.launch(*words, *HELD, "resources.spare_nodes=1", "runtime.node_timeout_s=4")
    training.wait_for_step(12)
    host, _ = training.nodes()
    training.strike(f"kill_node node={host}")
    training.go()
    training.completed(attempts=2)
    assert training.losses == first(calm, STEPS)
    nothing_is_left(training)


@thorough
def test_killed_supervisor_costs_a_requeue(
    training: Training, calm: dict[int, float], tmp_path: Path
) -> None:
    """Its containers end, and so do the processes that mount their image; Slurm starts the run again."""
    image = pack_image(make_image(tmp_path / "image"), tmp_path / "image.sqsh")
    words = container_words(find_apptainer_or_skip(), image)
    training.launch(*words, "container.options=[--userns]", *HELD)
    training.wait_for_step(12)
    training.strike("kill supervisor")
    training.go()
    training.completed(attempts=2)
    assert training.events("node_lost") == []
    assert training.losses == first(calm, STEPS)
    nothing_is_left(training)


@thorough
def test_preemption_costs_no_step(training: Training, calm: dict[int, float], words: tuple[str, ...]) -> None:
    """The notice reaches the agents in their containers; they save at one boundary."""
    training.launch(*words, SLOWLY, f"+params.steps={MANY}")
    training.wait_for_step(5)
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    assert training.steps == list(range(MANY))
    assert training.losses == first(calm, MANY)


def test_image_that_changed_before_its_start_is_refused(training: Training, words: tuple[str, ...]) -> None:
    """Between launch and start: the run fails, names both digests, and is not tried again."""
    image = Path(words[1].partition("=")[2])
    training.sandbox.slurm("scontrol", "update", "PartitionName=batch", "State=DOWN")
    training.launch(*words)
    (image / "IMAGE").write_text("other")
    training.sandbox.slurm("scontrol", "update", "PartitionName=batch", "State=UP")
    run = training.over()
    assert (run["state"], run["attempt"], run["failure"]["cause"]) == ("failed", 1, "container")
    assert "the launch was frozen with sha256:" in run["failure"]["message"]


@thorough
def test_profile_and_bench_measure_ranks_in_containers(training: Training, words: tuple[str, ...]) -> None:
    """What `profile` asks of ranks and what `bench comm` launches, both on two nodes."""
    training.launch(*words, "+params.steps=100000")
    training.wait_for_step(2)
    found = training.project.json("profile", "--ranks", "all", "--steps", "2")["ranks"]
    assert [(one["rank"], one["steps"]) for one in found] == [(0, 2), (1, 2)]
    assert all(Path(one["trace"]).stat().st_size == one["bytes"] for one in found)
    assert len(training.events("container_checked")) == 2
    training.project.hpckit("cancel")
    asked = ("cluster=sandbox", "resources.nodes=2", *words, "--sizes", "1KiB:4KiB", "--time-s", "20")
    told = training.project.json("bench", "comm", *asked)
    assert (told["healthy"], told["shape"]["backend"]) == (True, "gloo")
