"""Trainings by Lightning, the Hugging Face Trainer and Accelerate survive, with hpckit's line."""

import json
import os
import shutil
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from trained_batches import LIBRARIES, STEPS, TRAINED, list_effective_batches, read_rows
from waiting import run_to_end, until

from hpckit.errors import UsageError
from hpckit.integrations.trainer_run import check_installed
from hpckit.record.snapshot.script_imports import find_trainer_without_line
from hpckit.runtime.environ import FORK_SERVER

pytestmark = pytest.mark.training


class Project:
    """A project with one of the trainings, and what a user types in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def type(self, *words: str) -> str:
        """Run a command line of hpckit to its end; return what it printed."""
        kept = [name for name in os.environ if not name.startswith("HPCKIT_") or name == FORK_SERVER]
        environ = {name: os.environ[name] for name in kept}
        done = run_to_end([sys.executable, "-m", "hpckit", *words], cwd=self.folder, env=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def show_run(self) -> dict[str, Any]:
        """Return the run as `hpckit status --json` has it."""
        (run,) = json.loads(self.type("status", "--json"))["runs"]
        return dict(run)


@pytest.fixture
def project(library: str, tmp_path: Path) -> Project:
    """Return a project whose `train.py` trains with this library."""
    pytest.importorskip(library)
    shutil.copy(TRAINED / "recorded.py", tmp_path)
    shutil.copy(TRAINED / f"with_{library}.py", tmp_path / "train.py")
    return Project(tmp_path)


def in_two_tiers(*usual: tuple[str, str]) -> list[Any]:
    """Return all libraries with all faults; what is not usual is thorough."""
    cases = product(LIBRARIES, ("kill", "notice", "kill, notice"))
    return [case if case in usual else pytest.param(*case, marks=thorough) for case in cases]


@pytest.mark.parametrize(
    ("library", "faults"),
    in_two_tiers(("lightning", "kill"), ("transformers", "notice"), ("accelerate", "notice")),
)
def test_losses_after_a_kill_and_a_notice_are_those_of_a_plain_script(
    library: str, faults: str, project: Project
) -> None:
    """The same batches, each once, with the same losses to the bit; a notice repeats no step.

    Also generators of the user's own, those of data workers, counts and averages over the stop.
    """
    launch = ["launch", "cluster=local", "resources=cpu_pair", "checkpoint.interval_steps=3"]
    project.type(*launch, "--", "python", "train.py")
    (folder,) = (project.folder / "outputs").iterdir()
    run = folder / "runs" / "00000"

    def last_row(start: str, step: int) -> dict[str, Any] | None:
        rows = read_rows(run / "work", "broken", 1)
        return rows[-1] if rows and rows[-1]["start"] == start and rows[-1]["step"] >= step else None

    starts = ["1.0"]
    if "kill" in faults:  # in the second epoch
        os.kill(until(lambda: last_row("1.0", 8))["pid"], signal.SIGKILL)
        starts.append("1.1")
    if "notice" in faults:
        until(lambda: last_row(starts[-1], 10))
        events = next(run.glob("attempts/*/events.jsonl"))
        os.kill(json.loads(events.read_text().splitlines()[0])["pid"], signal.SIGTERM)
        until(lambda: '"attempt_ended"' in events.read_text())
        assert project.show_run()["state"] == "interrupted"
        stopped = read_rows(run / "work", "broken", 1)[-1]
        if library == "transformers":  # the newest is damaged: the one before is taken
            newest = max(run.glob("checkpoints/step-*"), key=lambda path: path.name)
            next(newest.glob("trainer/*/trainer_state.json")).write_text("{")
        project.type("resume", "--wait")
        starts.append("2.0")
        again = next(row["step"] for row in read_rows(run / "work", "broken", 1) if row["start"] == "2.0")
        assert again <= stopped["step"] if library == "transformers" else again == stopped["step"] + 1
    else:
        until(lambda: '"attempt_ended"' in next(run.glob("attempts/*/events.jsonl")).read_text())

    for rank in range(2):
        rows = read_rows(run / "work", "broken", rank)
        assert list(dict.fromkeys(row["start"] for row in rows)) == starts
        whole = list_effective_batches(read_rows(run / "work", "whole", rank))
        assert len(whole) == 2 * STEPS
        assert list_effective_batches(rows) == whole
        assert {row["handler"] for row in rows} <= {"", "StepBoundary._remember_leave_signal"}
    ended = project.show_run()
    assert (ended["state"], ended["step"]) == ("completed", STEPS - 1)
    assert "loss" in ended["metrics"]
    if library == "transformers":  # not in a folder of hpckit's, which goes
        assert (run / "work" / "best").read_text().startswith("broken/checkpoint-")
    if library == "accelerate":  # a second training, which would begin with the state of the first
        assert "another training came before" in (run / "work" / "refused-0").read_text()


@thorough
@pytest.mark.parametrize("library", LIBRARIES)
def test_training_that_has_ended_trains_no_batch_again(project: Project) -> None:
    """Also one that has ended itself early; its process is killed right after."""
    launch = ["launch", "cluster=local", "resources=cpu", "checkpoint.interval_steps=3", "--wait"]
    project.type(*launch, "--", "python", "train.py", "early")
    (work,) = project.folder.glob("outputs/*/runs/00000/work")
    rows = read_rows(work, "broken", 0)
    assert {row["start"] for row in rows} == {"1.0"}
    assert list_effective_batches(rows) == list_effective_batches(read_rows(work, "whole", 0))
    run = project.show_run()
    assert (run["state"], run["failure"]) == ("completed", None)
    assert (work / "ended").exists()


def test_integrations_do_nothing_outside_of_a_run(tmp_path: Path) -> None:
    """A script trains on a laptop as without them; two callbacks are an error there, too.

    So does a process that a rank has started: it has the rank's variables.
    """
    for library in LIBRARIES:
        pytest.importorskip(library)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    environ |= {"HPCKIT_ATTEMPT_DIR": str(tmp_path), "HPCKIT_RANK": "0", "HPCKIT_WORLD_SIZE": "1"}
    environ["HPCKIT_RANK_TRAINS"] = str(os.getpid())
    done = run_to_end([sys.executable, TRAINED / "outside.py"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    twice = "the Trainer has 2 of hpckit's callbacks; each would count its steps"
    assert told == {"lightning": 3, "transformers": 3, "accelerate": 6, "two": [twice, twice]}
    assert not [path.name for path in tmp_path.iterdir() if path.name != "out"]


def test_command_that_trains_without_the_line_is_told_of_it(tmp_path: Path) -> None:
    """Also where a module of the project trains; not one that imports hpckit, or only reads or tests."""
    texts = {
        "train.py": "from pkg import model",
        "pkg/model.py": "import lightning\nlightning.Trainer().fit(model)",
        "pkg/cli.py": "from lightning.pytorch.cli import LightningCLI\nLightningCLI()",
        "other.py": "from transformers import AutoModel",
        "ours.py": "import hpckit, lightning\nlightning.Trainer().fit(model)",
        "tests.py": "import lightning\nlightning.Trainer().test(model)",
    }
    (tmp_path / "pkg").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    def find(*words: str) -> str | None:
        return find_trainer_without_line(words, lambda file: tmp_path / file)

    told = (("python", "train.py"), ("python", "-m", "pkg.cli"), ("./train.py",))
    for words in told:
        assert str(find(*words)).endswith("callbacks=[hpckit.integrations.lightning.Callback()]")
    assert {find("python", name) for name in ("other.py", "ours.py", "tests.py")} == {None}


def test_integration_without_its_library_says_what_to_install() -> None:
    """One error, with the command."""
    with pytest.raises(UsageError, match="needs no_such_library") as caught:
        check_installed("no_such_library", "lightning")
    assert caught.value.hint == "pip install 'hpckit-slurm[lightning]'"
