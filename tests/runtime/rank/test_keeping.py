"""Promises of a run that keeps its state: real attempts, real kills, real checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import LIMIT_S, until

from hpckit.model.failure import Cause
from hpckit.model.launch import Checkpoint, Recovery
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, read_run_records

pytestmark = pytest.mark.training

STEPS = 12

TRAIN = f"""
import os, time, torch
from torch.nn.parallel import DistributedDataParallel

def main(config, run):
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    run.state(model=model, optimizer=optimizer, schedule=schedule)
    for step in run.steps({STEPS}, samples_per_step=8):
        mark = run.folder / "trouble"
        if config.params.get("trouble") == step and run.rank == 1 and not mark.exists():
            mark.touch()
            if config.params["how"] == "kill":
                os.kill(os.getpid(), 9)
        if config.params.get("slow"):
            (run.folder / f"at-{{step}}").touch()
            time.sleep(config.params["slow"])
        batch = torch.randn(4, 8)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.log(loss=loss, samples=run.samples)
    run.log(step={STEPS}, finished=run.samples)
"""


def losses(launch: Launch) -> dict[int, float]:
    """Return the last loss that was logged for each step, over all attempts."""
    found: dict[int, float] = {}
    for file in sorted(launch.paths.run(0).attempts.glob("*/metrics.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            if "loss" in line:
                found[line["step"]] = line["loss"]
    return found


def begun(launch: Launch) -> list[int]:
    """Return the first step that each attempt logged."""
    files = sorted(launch.paths.run(0).attempts.glob("*/metrics.jsonl"))
    return [json.loads(file.read_text().splitlines()[0])["step"] for file in files]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: Any) -> dict[int, float]:
    """Return the losses of a run that nothing happened to."""
    from runtime.conftest import Workshop, ranks  # noqa: PLC0415

    workshop = Workshop(tmp_path_factory.mktemp("undisturbed") / "project")
    ended = workshop.attempt(TRAIN, **ranks(2))
    assert ended.code == 0, ended.log(0)
    return losses(ended.launch)


def keeping(ranks: Any, **params: Any) -> dict[str, Any]:
    """Return settings for two ranks that save every third step."""
    settings: dict[str, Any] = ranks(
        2, recovery=Recovery(restarts={"signal": 1}), checkpoint=Checkpoint(interval_steps=3), params=params
    )
    return settings


def test_killed_rank_costs_at_most_an_interval(
    workshop: Any, ranks: Any, undisturbed: dict[int, float]
) -> None:
    """After SIGKILL of a rank the next round goes on from a checkpoint; the losses are the same."""
    ended = workshop.attempt(TRAIN, **keeping(ranks, trouble=8, how="kill", slow=0.1))
    assert ended.code == 0, ended.log(0, round_=1)
    assert ended.record.round == 1
    assert "restored step=" in ended.log(0, round_=1)
    steps = [json.loads(line)["step"] for line in ended.paths.metrics.read_text().splitlines()]
    again = steps[steps.index(7) + 1 :]
    assert 3 <= again[0] <= 7  # a save that is due waits for the end of the one before
    assert losses(ended.launch) == undisturbed
    assert ended.record.metrics["finished"] == STEPS * 8


def test_request_to_save_ends_nothing_and_costs_no_step(
    workshop: Any, ranks: Any, undisturbed: dict[int, float]
) -> None:
    """SIGUSR1 far from any limit: the ranks save, and the same attempt does the last step."""
    settings = keeping(ranks, slow=0.15) | {"recovery": Recovery(restarts={"left": 1})}
    launch = workshop.freeze(TRAIN, **settings)
    process = workshop.start(launch)
    events = launch.paths.run(0).attempt(1).events
    until(lambda: events.exists() and "checkpoint_saved" in events.read_text())
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    (run,) = read_run_records(launch)
    assert (run.state, run.attempt, run.round) == (RunState.completed, 1, 1)
    assert losses(launch) == undisturbed


def test_notice_costs_no_step(workshop: Any, ranks: Any, undisturbed: dict[int, float]) -> None:
    """Told to stop, the ranks save at the boundary and leave; the next attempt goes on there."""
    launch = workshop.freeze(TRAIN, **keeping(ranks, slow=0.15))
    process = workshop.start(launch)
    mark = launch.paths.run(0).folder / "at-4"
    until(mark.exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143, output
    stopped = max(losses(launch))
    assert 4 <= stopped < STEPS - 1
    assert read_run_records(launch)[0].state is RunState.interrupted
    process = workshop.start(launch)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert begun(launch) == [0, stopped + 1]
    assert losses(launch) == undisturbed


def test_completed_state_is_saved_and_not_trained_again(workshop: Any, ranks: Any) -> None:
    """The last step is saved too: one more attempt finds nothing to train and finishes."""
    launch = workshop.freeze(TRAIN, **keeping(ranks))
    for _ in range(2):
        process = workshop.start(launch)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
    assert sorted(losses(launch)) == list(range(STEPS))
    assert begun(launch) == [0, STEPS]


def test_damaged_checkpoint_is_passed_over(workshop: Any, ranks: Any, undisturbed: dict[int, float]) -> None:
    """A flipped bit in the newest checkpoint costs its steps, is said, and is never trained on."""
    launch = workshop.freeze(TRAIN, **keeping(ranks))
    process = workshop.start(launch)
    process.communicate(timeout=LIMIT_S)
    newest = max(launch.paths.run(0).checkpoints.glob("step-*"))
    damaged = max((path for path in newest.iterdir() if path.suffix == ".distcp"), key=_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    process = workshop.start(launch)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    log = launch.paths.run(0).attempt(2).round(0).rank_log(0).read_text()
    assert "skipped a checkpoint" in log
    assert newest.name in log
    assert begun(launch)[1] < STEPS
    assert losses(launch) == undisturbed


def _size(path: Path) -> int:
    return path.stat().st_size


def test_late_attempt_cannot_commit(workshop: Any, ranks: Any) -> None:
    """Once a newer attempt has begun, an older one that wakes up again is refused its save."""
    launch = workshop.freeze(TRAIN, **keeping(ranks, slow=0.2))
    process = workshop.start(launch)
    mark = launch.paths.run(0).folder / "at-1"
    until(mark.exists)
    launch.paths.run(0).attempt(2).folder.mkdir()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    exits = launch.paths.run(0).attempt(1).events.read_text()
    assert "FencedError" in exits
    assert not list(launch.paths.run(0).checkpoints.glob("*/manifest.json"))


TWICE = """
import torch
def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for _ in run.steps(2):
        pass
    for _ in run.steps(4):
        pass
"""


EPOCHS = """
import torch
{begin}
kept = torch.nn.Linear(2, 2)
{keep}
for total in {totals}:
    for step in run.steps(total):
        run.log(loss=1.0, epochs=total)
        if step == {last}:
            break
"""
AS_SCRIPT = {"begin": "import hpckit; run = hpckit.attach()", "last": 99, "totals": "(5, 5, 5)"}
FOUR_TIMES = Recovery(restarts={"exception": 3, "exit_code": 3})


def test_second_loop_over_kept_state_is_refused(workshop: Any, ranks: Any) -> None:
    """Two loops would restore each other's steps: the second is an error that says so."""
    ended = workshop.attempt(TWICE, **ranks(1))
    assert ended.code == 1
    assert ended.record.failure is not None
    assert ended.record.failure.cause is Cause.exception
    assert "run.steps() was already called" in ended.record.failure.message


@pytest.mark.parametrize(
    "loops",
    [
        pytest.param({}, id="epochs", marks=thorough),
        pytest.param({"totals": "(5, 10)"}, id="totals"),
        pytest.param({"totals": "(9, 9)", "last": 4}, id="break", marks=thorough),
    ],
)
def test_second_loop_is_refused_also_if_the_first_was_restored(
    workshop: Any, ranks: Any, loops: dict[str, Any]
) -> None:
    """However often it is tried again: a run whose later loops were never trained is no success."""
    code = EPOCHS.format(**AS_SCRIPT | loops, keep="run.state(model=kept)")
    started = {"entry_point": None, "command": "python task.py", "recovery": FOUR_TIMES}
    ended = workshop.attempt(code, **ranks(1, **started))
    assert ended.record.state is RunState.failed, ended.output
    assert ended.record.round, "it was tried again"
    assert ended.record.failure is not None
    assert "run.steps() was already called" in ended.record.failure.message
    told = shown(ended.launch)
    assert "try again: hpckit rerun" in told
    assert "or: hpckit resume" not in told


def test_loop_that_begins_again_without_state_is_told(workshop: Any, ranks: Any) -> None:
    """Steps that have the same numbers twice complete, with a warning, once."""
    started = {"entry_point": None, "command": "python task.py"}
    ended = workshop.attempt(EPOCHS.format(**AS_SCRIPT, keep=""), **ranks(1, **started))
    assert ended.record.state is RunState.completed, ended.output
    told = [words for words in ended.record.warnings if "was called again" in words]
    assert len(told) == 1, ended.record.warnings


def shown(launch: Launch) -> str:
    """Return what `status` prints of a launch."""
    words = [sys.executable, "-m", "hpckit", "status", str(launch.folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout
