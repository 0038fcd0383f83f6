"""An end is what the ranks say it is: nothing that stops one rank makes a run complete."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from campaign_programs import FILES, STEPS, logged
from runtime.conftest import Workshop, ranks
from tiers import thorough
from waiting import until

from hpckit.model import events
from hpckit.model.failure import Cause, ExitReason, RankExit, StateKept
from hpckit.model.launch import Checkpoint, Recovery
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.store import read_events
from hpckit.runtime.fork_server.protocol import read_process_environment

pytestmark = pytest.mark.training

WAYS: Mapping[str, Mapping[str, Any]] = {
    "function": {"entry_point": "whole:main"},
    "attach": {"entry_point": None, "command": [sys.executable, "attached.py"]},
    "command": {"entry_point": None, "command": [sys.executable, "plain.py"]},
}
"""How a run is brought to hpckit (tests/campaign_programs.py)."""

LONGEST_S = 240


def prepare(shop: Workshop, way: str, **more: Any) -> Launch:
    """Freeze a run of two ranks that trains in this way."""
    shop.project.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (shop.project / name).write_text(text)
    settings = {
        "recovery": Recovery(restarts={"left": 20, "signal": 5, "communication": 5}),
        "checkpoint": Checkpoint(interval_steps=5),
        **more,
    }
    return shop.freeze("", **ranks(2, **WAYS[way], **settings))


def wait_for_step(launch: Launch, step: int) -> None:
    """Wait until a run has logged this step."""
    until(lambda: any(at >= step for at, _ in logged(launch.paths.run(0).folder)))


def rank_pid(pid: int, rank: int) -> int | None:
    """Return the process of a rank of a supervisor's run, None while it is not there."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    folder = os.fsdecode(words[words.index(b"supervise") + 1])
    for entry in Path("/proc").iterdir():
        wanted = {"RANK": str(rank), "HPCKIT_LAUNCH_DIR": folder}
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                variables = read_process_environment(int(entry.name))
                leads = os.getsid(int(entry.name)) == int(entry.name)
                if leads and wanted.items() <= variables.items():
                    return int(entry.name)
    return None


def strike(process: subprocess.Popen[str], number: signal.Signals, rank: int) -> None:
    """Send a signal to a rank, as somebody does who knows nothing of hpckit."""
    pid = rank_pid(process.pid, rank)
    assert pid is not None, "the rank is gone"
    os.kill(pid, number)


def losses(launch: Launch) -> dict[int, float]:
    """Return the loss of each step; a step that was done again must have had the same."""
    found: dict[int, float] = {}
    for step, loss in logged(launch.paths.run(0).folder):
        assert found.setdefault(step, loss) == loss, f"step {step} has two losses"
    return found


def exits(launch: Launch, attempt: int = 1) -> list[RankExit]:
    """Return the exit records of an attempt, in their order."""
    history = read_events(launch.paths.run(0).attempt(attempt).events)
    return [event.exit for event in history if isinstance(event, events.RankExited)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of a run that nothing happens to."""
    launch = prepare(Workshop(tmp_path_factory.mktemp("undisturbed") / "project"), "function")
    process = Workshop(Path()).start(launch)
    output, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, output
    return losses(launch)


@thorough
@pytest.mark.parametrize("way", ["function", "attach", "command"])
def test_signal_to_one_rank_costs_a_round_and_no_step(
    workshop: Workshop, undisturbed: dict[int, float], way: str
) -> None:
    """SIGTERM and SIGUSR1 to one rank: the run does its last step, with the very same losses."""
    launch = prepare(workshop, way)
    process = workshop.start(launch)
    for at, number in ((5, signal.SIGTERM), (30, signal.SIGUSR1)):
        wait_for_step(launch, at + random.randrange(10))  # noqa: S311  # any step will do
        strike(process, number, random.randrange(2))  # noqa: S311
    output, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, output
    (record,) = read_run_records(launch)
    assert (record.state, record.round, record.reason) == (RunState.completed, 2, "")
    assert losses(launch) == undisturbed
    assert max(undisturbed) == STEPS - 1
    if way != "command":
        reasons = [one.reason for one in exits(launch)]
        assert reasons == [ExitReason.left] * 4 + [ExitReason.returned] * 2
        told = [one.told_signal for one in exits(launch) if one.told_signal]
        assert sorted(told) == ["SIGTERM", "SIGUSR1"]
        assert all(one.kept is StateKept.saved for one in exits(launch))


STOP = """
import torch, torch.distributed as dist, hpckit
def main(config, run):
    model = torch.nn.Linear(2, 2)
    run.state(model=model)
    for step in run.steps(100):
        dist.all_reduce(torch.ones(1))
        run.log(loss=1.0)
        if step == 40:
            break
if __name__ == "__main__":
    main({}, hpckit.attach())
"""
VANISH = """
import os, hpckit
def main(config, run):
    for step in run.steps(3):
        if run.rank:
            os._exit(0)
if __name__ == "__main__":
    main({}, hpckit.attach())
"""
EITHER_WAY: Mapping[str, Mapping[str, Any]] = {
    "function": {},
    "attach": {"entry_point": None, "command": "python task.py"},
}
"""How `task.py` is brought to hpckit."""
SWALLOW = """
import os, signal
def main(config, run):
    try:
        for step in run.steps(100_000):
            if step == 5 and run.round == 0 and run.rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if run.round:
                return
    except SystemExit:
        pass
"""


@pytest.mark.parametrize("way", ["function", pytest.param("attach", marks=thorough)])
def test_early_stopping_is_complete_and_saved(workshop: Workshop, way: str) -> None:
    """`break` on all ranks: completed, saved as it is; the step that was left does not count."""
    ended = workshop.attempt(STOP, **ranks(2, **EITHER_WAY[way]))
    assert (ended.code, ended.record.state) == (0, RunState.completed), ended.output
    assert ended.record.reason == "returned at step 40 of 100"
    assert {one.kept for one in ended.exits()} == {StateKept.saved}
    steps = [folder.name for folder in _checkpoints(ended.launch)]
    assert any(name.startswith("step-00000040.") for name in steps), steps


def _checkpoints(launch: Launch) -> Iterator[Path]:
    for manifest in launch.paths.run(0).folder.rglob("manifest.json"):
        assert json.loads(manifest.read_text())
        yield manifest.parent


@pytest.mark.parametrize("way", [pytest.param("function", marks=thorough), "attach"])
def test_rank_that_vanishes_with_code_zero_is_not_complete(workshop: Workshop, way: str) -> None:
    """`os._exit(0)` before the code came to its end is a failure, with the rank that did it."""
    ended = workshop.attempt(VANISH, **ranks(2, **EITHER_WAY[way]))
    assert (ended.code, ended.record.state) == (1, RunState.failed)
    assert ended.record.failure is not None
    assert (ended.record.failure.cause, ended.record.failure.rank) == (Cause.exit_code, 1)
    assert "before it had finished" in ended.record.failure.message


def test_user_code_that_swallows_the_leaving_does_not_complete(workshop: Workshop) -> None:
    """A rank that left has left, also where its function catches SystemExit and returns."""
    ended = workshop.attempt(SWALLOW, **ranks(1, recovery=Recovery(restarts={"left": 1})))
    assert (ended.code, ended.record.round) == (0, 1), ended.output
    assert [one.reason for one in ended.exits()] == [ExitReason.left, ExitReason.returned]


@pytest.mark.parametrize(
    "code",
    [
        "async def main(config, run): run.log(x=1)\n",
        "def main(config, run):\n    yield run.log(x=1)\n",
        "async def work(run): run.log(x=1)\nmain = lambda config, run: work(run)\n",
    ],
    ids=["coroutine", "generator", "returned-coroutine"],
)
def test_function_that_runs_none_of_its_lines_is_refused(workshop: Workshop, code: str) -> None:
    """Coroutine and generator functions do nothing when called: one clear error, not success."""
    ended = workshop.attempt(code, **ranks(1))
    assert (ended.code, ended.record.state) == (1, RunState.failed)
    assert ended.record.failure is not None
    assert "is a coroutine or generator function" in ended.record.failure.message
    assert "Traceback" not in ended.log(0)


AFTER_THE_LOOP = """
import os, signal, torch
def main(config, run):
    run.state(model=torch.nn.Linear(1, 1))
    if config.params.get("late"):
        os.kill(os.getppid(), signal.SIGSTOP)
    for step in run.steps(3):
        run.log(number=step)
    os.kill(os.getppid(), signal.SIGCONT)
    if run.round == 0:
        raise ValueError("the report could not be written")
"""


@pytest.mark.parametrize("late", [False, True])
def test_failure_after_the_last_step_undoes_no_step(workshop: Workshop, *, late: bool) -> None:
    """A round that finds all steps done begins none: metrics of the last step still count.

    That a round began with step 0 is known, too, if its agent hears of it `late`.
    """
    restarts = Recovery(restarts={"exception": 1})
    ended = workshop.attempt(AFTER_THE_LOOP, **ranks(1, recovery=restarts), params={"late": late})
    assert (ended.code, ended.record.round) == (0, 1), ended.output
    assert (ended.record.metrics["number"], ended.record.step) == (2, 2)
    over = [event for event in read_events(ended.paths.events) if isinstance(event, events.RoundEnded)]
    assert [one.first_step for one in over] == [0, None]


DROPPED = """
import time
def main(config, run):
    metrics = run.attempt_folder / "metrics.jsonl"
    for step in run.steps(12):
        if step == 3:
            metrics.rename(metrics.with_name("kept"))
            metrics.symlink_to("/dev/full")
        if step == 9:
            metrics.with_name("kept").replace(metrics)
        run.log(loss=1.0)
"""


def test_full_disk_below_the_metrics_costs_rows_and_no_training(workshop: Workshop) -> None:
    """`run.log` warns once, drops, counts what it dropped, and goes on when there is room."""
    ended = workshop.attempt(DROPPED, **ranks(1))
    assert (ended.code, ended.record.state) == (0, RunState.completed), ended.output
    first, last = (warning for warning in ended.record.warnings if "metrics" in warning)
    assert "metrics are dropped for now" in first
    assert "No space left on device" in first
    assert last == "6 rows of metrics were dropped"
    assert [step for step, _ in logged(ended.launch.paths.run(0).folder)] == [0, 1, 2, 9, 10, 11]


POISON = """
import os, time, torch

class Cargo:
    def __init__(self, run):
        self.run = run
    def state_dict(self):
        return {"bad": torch.tensor(self.run.step == 14)}
    def load_state_dict(self, state):
        if state["bad"]:
            os.kill(os.getpid(), 9)

def main(config, run):
    run.state(cargo=Cargo(run))
    for step in run.steps(25):
        time.sleep(0.2)
        if step == 17 and run.round == 0:
            time.sleep(2)
            os.kill(os.getpid(), 9)
        run.log(loss=1.0)
"""


def test_poison_checkpoint_does_not_end_a_run_that_has_an_older_one(workshop: Workshop) -> None:
    """Deaths at its load count for the checkpoint: with one restart left the run completes."""
    policy = Recovery(restarts={"signal": 1})
    checkpoint = Checkpoint(interval_steps=5)
    launch = workshop.freeze(POISON, **ranks(1, recovery=policy, checkpoint=checkpoint))
    output, _ = (process := workshop.start(launch)).communicate(timeout=LONGEST_S)
    assert process.returncode == 0, output
    history = read_events(launch.paths.run(0).attempt(1).events)
    told = [one for one in history if isinstance(one, events.RoundEnded)]
    loads = [one.failure.checkpoint for one in told if one.failure is not None]
    assert [name and name.split(".")[0] for name in loads] == [None, *["step-00000015"] * 2]
    assert [one.first_step for one in told] == [0, None, None, 10]
