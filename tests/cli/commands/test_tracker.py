"""Promises of tracker presets, with real ranks on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.planning.tracker import compute_wandb_id

pytestmark = pytest.mark.slow

PROGRAM = """\
import json, os, time
from pathlib import Path
folder = Path(os.environ["HPCKIT_PROJECT"], "seen")
folder.mkdir(exist_ok=True)
shown = {name: value for name, value in os.environ.items() if name.startswith(("WANDB", "MLFLOW"))}
name = "-".join(os.environ[f"HPCKIT_{part}"] for part in ("RANK", "ROUND"))
attempt = Path(os.environ["HPCKIT_ATTEMPT_DIR"]).name
(folder / f"{attempt}-{name}.json").write_text(json.dumps(shown))
others = [f"{attempt}-{rank}-{name[2:]}.json" for rank in range(int(os.environ["WORLD_SIZE"]))]
while not all((folder / other).exists() for other in others):  # the first to fail ends the others
    time.sleep(0.02)
raise SystemExit(0 if attempt == "002" else 3)
"""
TASK = ("cluster=local", "code.snapshot=false", "recovery=never", "observe=off")


@pytest.fixture
def program(shell: Any) -> Any:
    """Return a shell in a project with a program that records its variables."""
    (shell.cwd / "track.py").write_text(PROGRAM)
    for name in [name for name in shell.environ if name.startswith(("WANDB", "MLFLOW"))]:
        shell.environ.pop(name)
    return shell


def seen(shell: Any) -> dict[str, dict[str, str]]:
    """Return the variables of each start: attempt, rank, round."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((shell.cwd / "seen").iterdir())}


def command(shell: Any) -> tuple[str, ...]:
    """Return the words that run the program."""
    return ("--", "python", str(shell.cwd / "track.py"))


@thorough
def test_ranks_continue_the_same_run_of_wandb(program: Any) -> None:
    """After a restart in the same attempt and after `resume`; only rank 0 logs."""
    words = ("tracker=wandb", *TASK, "+recovery.restarts.exit_code=1", "resources.tasks_per_node=2")
    program.environ["WANDB_RUN_ID"] = "of-the-shell"
    program.environ["WANDB_MODE"] = "offline"
    assert program("launch", "--wait", *words, *command(program)).code == 1
    assert program("resume", "--wait").code == 0
    (launch,) = program.outputs
    found = seen(program)
    assert sorted(found) == [
        f"{attempt}-{rank}-{number}"
        for attempt, rank, number in [
            *(("001", 0, 0), ("001", 0, 1), ("001", 1, 0), ("001", 1, 1)),
            *(("002", 0, 0), ("002", 1, 0)),
        ]
    ]
    same = {
        "WANDB_RUN_ID": compute_wandb_id(f"{launch.name}.0"),
        "WANDB_RESUME": "allow",
        "WANDB_RUN_GROUP": launch.name,
        "WANDB_NAME": f"{launch.name}.0",
        "WANDB_DIR": str(launch / "runs" / "00000"),
        "WANDB_PROJECT": "project",
    }
    for name, variables in found.items():
        mode = "offline" if name.split("-")[1] == "0" else "disabled"
        assert variables == {**same, "WANDB_MODE": mode}
    assert Path(same["WANDB_DIR"]).is_dir()


def test_env_comes_before_the_preset(program: Any) -> None:
    """Every value of the user's own `env` stays; the preset fills in the rest."""
    own = ("+env.WANDB_RUN_ID=mine", "+env.WANDB_MODE=offline", "tracker.project=theirs")
    ranks = "resources.tasks_per_node=2"
    program("launch", "--wait", "tracker=wandb", *TASK, ranks, *own, *command(program))
    for variables in seen(program).values():
        assert variables["WANDB_RUN_ID"] == "mine"
        assert variables["WANDB_MODE"] == "offline"
        assert variables["WANDB_PROJECT"] == "theirs"


def test_mlflow_gets_tags(program: Any) -> None:
    """By which the user's code finds its run again."""
    words = ("tracker=mlflow", "tracker.uri=http://tracking:5000", *TASK)
    program("launch", "--wait", *words, *command(program))
    (launch,) = program.outputs
    (variables,) = seen(program).values()
    tags = json.loads(variables.pop("MLFLOW_RUN_CONTEXT"))
    assert (tags["hpckit.run"], tags["hpckit.launch"]) == (f"{launch.name}.0", launch.name)
    assert variables == {"MLFLOW_EXPERIMENT_NAME": "project", "MLFLOW_TRACKING_URI": "http://tracking:5000"}


def test_trackers_and_notices_are_no_part_of_the_signature(program: Any) -> None:
    """What a run computes is the same with and without them."""
    program.environ["HPCKIT_NOTIFY"] = "exec:true"
    for words in ((), ("tracker=wandb", "notify=all")):
        program("render", *words, *TASK, *command(program))
    records = [json.loads((output / "launch.json").read_text()) for output in program.outputs]
    assert len({record["runs"][0]["signature"] for record in records}) == 1
    assert len(records) == 2
