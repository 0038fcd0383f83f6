"""Trainings by Lightning, the Hugging Face Trainer and Accelerate survive, with hpckit's line."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.parametrize("library", LIBRARIES)
def test_losses_after_a_kill_and_a_notice_are_those_of_a_plain_script(library: str, project: Project) -> None:
    """The same batches, each once, with the same losses to the bit; a notice repeats no step."""
    launch = ["launch", "cluster=local", "resources=cpu_pair", "checkpoint.interval_steps=3"]
    project.type(*launch, "--", "python", "train.py")
    (folder,) = (project.folder / "outputs").iterdir()
    run = folder / "runs" / "00000"

    def last_row(start: str, step: int) -> dict[str, Any] | None:
        rows = read_rows(run / "work", "broken", 1)
        return rows[-1] if rows and rows[-1]["start"] == start and rows[-1]["step"] >= step else None

    os.kill(until(lambda: last_row("1.0", 4))["pid"], signal.SIGKILL)
    until(lambda: last_row("1.1", 8))
    first = next(run.glob("attempts/*/events.jsonl")).read_text().splitlines()[0]
    os.kill(json.loads(first)["pid"], signal.SIGTERM)
    until(lambda: project.show_run()["state"] == "interrupted")
    stopped = read_rows(run / "work", "broken", 1)[-1]
    if library == "transformers":  # the newest is damaged: the one before is taken
        newest = max(run.glob("checkpoints/step-*"), key=lambda path: path.name)
        next(newest.glob("trainer/*/trainer_state.json")).write_text("{")
    project.type("resume", "--wait")

    for rank in range(2):
        rows = read_rows(run / "work", "broken", rank)
        assert {row["start"] for row in rows} == {"1.0", "1.1", "2.0"}
        whole = list_effective_batches(read_rows(run / "work", "whole", rank))
        assert len(whole) == 2 * STEPS
        assert list_effective_batches(rows) == whole
        assert {row["handler"] for row in rows} <= {"", "StepBoundary._remember_leave_signal"}
        again = next(row["step"] for row in rows if row["start"] == "2.0")
        assert again <= stopped["step"] if library == "transformers" else again == stopped["step"] + 1
    ended = project.show_run()
    assert (ended["state"], ended["step"]) == ("completed", STEPS - 1)
    assert "loss" in ended["metrics"]


def test_integrations_do_nothing_outside_of_a_run(tmp_path: Path) -> None:
    """A script trains on a laptop as without them; two callbacks are an error there, too."""
    for library in LIBRARIES:
        pytest.importorskip(library)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    done = run_to_end([sys.executable, TRAINED / "outside.py"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    twice = "the Trainer has 2 of hpckit's callbacks; each would count its steps"
    assert told == {"lightning": 3, "transformers": 3, "accelerate": 6, "two": [twice, twice]}
    assert not [path.name for path in tmp_path.iterdir() if path.name != "out"]


def test_command_that_trains_without_the_line_is_told_of_it(tmp_path: Path) -> None:
    """Also where a module of the project trains; not one that imports hpckit, or only reads models."""
    texts = {
        "train.py": "from src import model",
        "src.py": "import lightning\nlightning.Trainer()",
        "other.py": "from transformers import AutoModel",
        "ours.py": "import hpckit, lightning\nlightning.Trainer()",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    said = [
        find_trainer_without_line(("python", name), lambda file: tmp_path / file)
        for name in ("train.py", "other.py", "ours.py")
    ]
    assert said[1:] == [None, None]
    assert str(said[0]).endswith("callbacks=[hpckit.integrations.lightning.Callback()]")


def test_integration_without_its_library_says_what_to_install() -> None:
    """One error, with the command."""
    with pytest.raises(UsageError, match="needs no_such_library") as caught:
        check_installed("no_such_library", "lightning")
    assert caught.value.hint == "pip install 'hpckit-slurm[lightning]'"
