"""Scripts that end in unusual ways: what is not done is not saved as done, nor called complete."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from runtime.conftest import Attempted, Workshop, ranks
from tiers import thorough

from hpckit.model.failure import Cause, ExitReason, StateKept
from hpckit.model.launch import Checkpoint, Recovery
from hpckit.model.states import RunState
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

pytestmark = pytest.mark.training

FAILS = """
import os, sys, torch, hpckit
import torch.distributed as dist
run = hpckit.attach()
run.state(model=torch.nn.Linear(2, 2))
try:
    for step in run.steps(20):
        if step == 5 and run.rank in {ranks}:
            raise ValueError("bad sample")
        dist.all_reduce(torch.ones(1))
        run.log(loss=1.0)
except Exception as error:
    print("failed:", error)
    sys.exit(3)
"""
CAUGHT = """
import sys, torch, hpckit
run = hpckit.attach()
run.state(model=torch.nn.Linear(2, 2))
try:
    sys.exit(2)
except SystemExit:
    pass
for step in run.steps(3):
    run.log(loss=1.0)
"""
LEAVES = """
import itertools, pathlib, sys, torch, hpckit

def early(steps):
    for step in steps:
        if step == 5 and first:
            return
        yield step

run = hpckit.attach()
first = not pathlib.Path({came!r}).exists()
model = torch.nn.Linear(1, 1)
model.register_buffer("done", torch.zeros(10))
run.state(model=model)
begun = run.steps(10)
steps = {loop} if first else ((step, None) for step in begun)
for step, _ in steps:
    if first and step == 5:
        pathlib.Path({came!r}).touch()
        {leave}
    model.done[step] += 1
pathlib.Path({came!r}).touch()
run.log(done=str(model.done.int().tolist()))
"""
LEAVING = {
    "exit": "exit(1)",
    "quit": "quit('a check failed')",
    "sys.exit": "sys.exit(4)",
    "SystemExit": "raise SystemExit(3)",
    "main": "raise SystemExit(True)",
    "exception": "raise ValueError('bad')",
}
ENDING = {
    "zip": "zip(begun, range(5))",
    "zip after": "((one, two) for two, one in zip(range(5), begun))",
    "islice": "((one, None) for one in itertools.islice(begun, 5))",
    "generator": "((one, None) for one in early(begun))",
    "break": "((one, None) for one in begun)",
}
LEAVES_PLAINLY = ENDING["break"]
TRAINS_ASIDE = """
import sys, threading, time, torch, hpckit
run = hpckit.attach()
model = torch.nn.Linear(1, 1)
run.state(model=model)
kept = []
try:
    sys.exit(2)  # as a command-line tool does that is called as a function
except SystemExit as error:
    kept.append(error)

def train():
    time.sleep(0.3)
    for step in run.steps(10):
        run.log(loss=0.5)

threading.Thread(target=train).start()
"""
FAILS_ASIDE = """
import threading, torch, hpckit
def main(config=None, run=None):
    run = run or hpckit.attach()
    run.state(model=torch.nn.Linear(1, 1))
    def train():
        for step in run.steps(10):
            if step == 4:
                raise ValueError("bad sample")
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
if __name__ == "__main__":
    main()
"""
STOPS_SAVED = """
import time, torch
def main(config, run):
    model = torch.nn.Linear(1, 1)
    model.register_buffer("done", torch.zeros(10))
    run.state(model=model)
    for step in run.steps(10):
        model.done[step] = 1
        if step == 3:
            break
"""
NEVER = """
import torch
def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for step in range(3):
        run.log(loss=1.0)
"""
LATE = """
import torch
def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for step in run.steps(8):
        if step == 4:
            run.state(ema=torch.nn.Linear(2, 2))
"""
TOLD_LAST = """
import os, signal, torch
class Cargo:
    def __init__(self, run):
        self.run = run
    def state_dict(self):
        if self.run.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"x": torch.ones(1)}
    def load_state_dict(self, state):
        pass
def main(config, run):
    run.state(cargo=Cargo(run))
    for step in run.steps(6):
        run.log(loss=1.0)
"""
FORKS = """
import os, sys, torch, hpckit
def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for step in run.steps(6):
        if step == 2:
            child = os.fork()
            if child == 0:
                {way}
            _, status = os.waitpid(child, 0)
            run.log(child=os.waitstatus_to_exitcode(status))
if __name__ == "__main__":
    main({}, hpckit.attach())
"""
DIES_SLOWLY = """
import os, signal, time, torch
def main(config, run):
    if run.rank == 1:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        time.sleep(120)
    else:
        time.sleep(1)
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1")
"""
FORGETS = """
import os, torch
def main(config, run):
    kept = torch.nn.Linear(2, 2)
    {keep}
    for step in run.steps(6):
        if step == 3 and run.round == 0:
            os.kill(os.getpid(), 9)
"""
ABORTS = """
import atexit, os, sys, torch, hpckit
run = hpckit.attach()
run.state(model=torch.nn.Linear(2, 2))
for step in run.steps(3):
    run.log(loss=1.0)

class Late:
    def __del__(self, abort=os.abort):
        abort()  # as torch does with what a thread of gloo drops

{when}
sys.exit({code})
"""
NEVER_AGAIN = Recovery(restarts={"communication": 0, "signal": 0})
ATTACHED = {"entry_point": None, "command": "python task.py"}


@pytest.mark.parametrize("failing", [pytest.param("(0, 1)", marks=thorough), "(1,)"])
def test_script_that_exits_with_an_error_saves_no_step_it_has_not_done(
    workshop: Workshop, failing: str
) -> None:
    """An exception that becomes `sys.exit(3)`: the run fails with it, soon, and step 5 is not done.

    So does `@hydra.main` with every exception, and many a careful script.
    """
    code = FAILS.replace("{ranks}", failing)
    began = time.monotonic()
    ended = workshop.attempt(code, **ranks(2, checkpoint=Checkpoint(interval_steps=2), **ATTACHED))
    assert time.monotonic() - began < 120, "the peers of the rank that exited were waited for"
    assert ended.record.state is RunState.failed, ended.output
    failure = ended.record.failure
    assert failure is not None
    assert failure.cause is Cause.exit_code
    assert (3, ExitReason.exited) in [(one.code, one.reason) for one in ended.exits()]
    saved = [path.name for path in ended.launch.paths.run(0).folder.rglob("step-*")]
    assert not [name for name in saved if name.startswith("step-00000006")]


@pytest.mark.parametrize(
    ("when", "code", "cause"),
    [
        ("late = Late()", 0, None),
        pytest.param("late = Late()", 3, Cause.exit_code, marks=thorough),
        ("atexit.register(os.abort)", 0, Cause.crash),
    ],
)
def test_abort_while_python_is_taken_down_is_not_the_end_of_a_script(
    workshop: Workshop, when: str, code: int, cause: Cause | None
) -> None:
    """What a script ended with counts; an abort in its own last words is its end."""
    ended = workshop.attempt(
        ABORTS.format(when=when, code=code), **ranks(1, recovery=NEVER_AGAIN, **ATTACHED)
    )
    failure = ended.record.failure
    assert (None if failure is None else failure.cause) == cause, ended.output
    assert ended.record.state is (RunState.completed if cause is None else RunState.failed)


def leaving(shop: Workshop, loop: str, leave: str, **more: Any) -> Attempted:
    """Run a script that is left in its sixth step when it comes there first."""
    came = str(shop.project.parent / "came")
    code = LEAVES.format(came=came, loop=loop, leave=leave)
    return shop.attempt(code, **ranks(1, **ATTACHED, **more))


def saved_steps(ended: Attempted) -> list[int]:
    """Return the steps of the checkpoints of a run."""
    folders = ended.launch.paths.run(0).folder.rglob("step-*")
    return sorted(int(folder.name[5:13]) for folder in folders if (folder / "manifest.json").exists())


@pytest.mark.parametrize(
    "way", [one if one == "exit" else pytest.param(one, marks=thorough) for one in LEAVING]
)
def test_step_that_a_script_exits_in_is_trained_after_a_restart(workshop: Workshop, way: str) -> None:
    """However a script ends itself in a step: the step is repeated, not skipped."""
    patient = Recovery(restarts={"exit_code": 3, "exception": 3})
    ended = leaving(
        workshop, LEAVES_PLAINLY, LEAVING[way], recovery=patient, checkpoint=Checkpoint(interval_steps=2)
    )
    assert ended.record.state is RunState.completed, ended.output
    assert ended.record.round == 1, "it was left once"
    assert ended.record.metrics["done"] == str([1] * 10)


@pytest.mark.parametrize("way", ["zip", *(pytest.param(one, marks=thorough) for one in ENDING)])
def test_step_that_was_left_is_not_counted_as_done(workshop: Workshop, way: str) -> None:
    """What runs out of data, is cut or left in step 5 completes with 5 steps, or 4, not 6."""
    ended = leaving(workshop, ENDING[way], "break")
    assert ended.record.state is RunState.completed, ended.output
    done = 4 if way in {"zip after", "islice"} else 5
    assert ended.record.reason == f"returned at step {done} of 10"
    assert ended.record.step == done - 1
    assert saved_steps(ended)[-1] == done
    assert ended.record.metrics["done"] == str([1] * 5 + [0] * 5)


def test_script_that_keeps_a_caught_exit_and_trains_in_a_thread_completes(workshop: Workshop) -> None:
    """What it caught is not how it ended, and Python waits for a thread that nobody joined."""
    ended = workshop.attempt(TRAINS_ASIDE, **ranks(1, **ATTACHED))
    assert ended.record.state is RunState.completed, ended.output
    assert saved_steps(ended)[-1] == 10


@pytest.mark.parametrize("words", [ATTACHED, {}], ids=["attach()", "function"])
def test_a_loop_that_fails_in_a_thread_fails_its_run(workshop: Workshop, words: dict[str, Any]) -> None:
    """Python goes on and exits with 0; the run has not completed, and the message is its own."""
    ended = workshop.attempt(FAILS_ASIDE, **ranks(1, **words))
    assert ended.record.state is RunState.failed, ended.output
    failure = ended.record.failure
    assert failure is not None
    assert (failure.cause, "bad sample" in failure.message) == (Cause.exception, True)


def test_state_that_a_loop_was_left_with_is_saved_beside_that_of_its_boundary(workshop: Workshop) -> None:
    """What was trained since the last save of a step is in the final state, though not counted."""
    ended = workshop.attempt(STOPS_SAVED, **ranks(1, checkpoint=Checkpoint(interval_steps=1)))
    assert ended.record.state is RunState.completed, ended.output
    model = torch.nn.Linear(1, 1)
    model.register_buffer("done", torch.zeros(10))
    folder = ended.launch.paths.run(0).folder / "checkpoints"
    restored = Checkpointer(folder, CheckpointSettings()).restore({"model": model})
    assert restored is not None
    assert restored.step == 3
    assert model.state_dict()["done"].int().tolist() == [1] * 4 + [0] * 6


@thorough
def test_script_that_catches_its_own_exit_completes(workshop: Workshop) -> None:
    """A `sys.exit` that the script caught says nothing of its end."""
    ended = workshop.attempt(CAUGHT, **ranks(1, **ATTACHED))
    assert ended.record.state is RunState.completed, ended.output
    assert [one.kept for one in ended.exits()] == [StateKept.saved]


@pytest.mark.parametrize(
    ("code", "words"),
    [(NEVER, "without run.steps()"), (LATE, "run.state(ema=…) came after run.steps() had begun")],
    ids=["never", "late"],
)
def test_state_that_no_checkpoint_would_hold_is_an_error(workshop: Workshop, code: str, words: str) -> None:
    """What was registered and never saved, or too late for a restart, is told and not completed."""
    ended = workshop.attempt(code, **ranks(1))
    assert ended.record.state is RunState.failed
    assert ended.record.failure is not None
    assert words in ended.record.failure.message


def test_signal_during_the_last_save_costs_nothing(workshop: Workshop) -> None:
    """SIGTERM to a rank that saves its last state: it finishes the save and completes."""
    code = TOLD_LAST
    ended = workshop.attempt(code, **ranks(1, checkpoint=Checkpoint(interval_steps=100)))
    assert (ended.code, ended.record.state) == (0, RunState.completed), ended.output
    assert [one.kept for one in ended.exits()] == [StateKept.saved]


def test_noted_exit_is_still_that_of_the_interpreter() -> None:
    """Status, text and success of `sys.exit` stay what they are without hpckit."""
    begin = "import sys\nfrom hpckit.runtime.rank import exit_status\nexit_status.note_exit_calls()\n"
    for words, code in (("", 0), ("7", 7), ("'told'", 1), ("None", 0)):
        script = f"{begin}sys.exit({words})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "told\n" if "told" in words else "")


@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="function"), pytest.param(ATTACHED, id="attach", marks=thorough)]
)
@pytest.mark.parametrize(
    ("way", "code"),
    [
        pytest.param("raise ValueError('only the child')", 1, id="raises", marks=thorough),
        pytest.param("sys.exit(3)", 3, id="exits"),
        pytest.param("return", 0, id="returns", marks=thorough),
    ],
)
def test_child_that_was_forked_says_nothing_of_the_rank(
    workshop: Workshop, way: str, code: int, settings: dict[str, Any]
) -> None:
    """However a forked child ends, it is no rank: the run goes on and completes."""
    ended = workshop.attempt(FORKS.replace("{way}", way), **ranks(1, **settings))
    assert ended.record.state is RunState.completed, ended.output
    assert ended.record.metrics["child"] == code
    assert [(one.reason, one.kept) for one in ended.exits()] == [(ExitReason.returned, StateKept.saved)]


def test_rank_killed_from_outside_while_peers_are_stopped_is_the_one_named(workshop: Workshop) -> None:
    """The kernel kills rank 1 slowly: its peer's broken connection is told first, not blamed."""
    ended = workshop.attempt(DIES_SLOWLY, **ranks(2, recovery=NEVER_AGAIN))
    assert ended.record.state is RunState.failed, ended.output
    failure = ended.record.failure
    assert failure is not None
    assert (failure.rank, failure.cause) == (1, Cause.signal), failure
    assert "rank 1 was killed by SIGKILL" in failure.message


@pytest.mark.parametrize(("keep", "told"), [("", True), ("run.state(model=kept)", False)])
def test_run_that_registered_no_state_is_told_what_a_restart_cost(
    workshop: Workshop, *, keep: str, told: bool
) -> None:
    """Steps that were done begin again at 0: the reason stands in `status`, for who forgot it."""
    once = Recovery(restarts={"signal": 1})
    ended = workshop.attempt(FORGETS.replace("{keep}", keep), **ranks(1, recovery=once))
    assert ended.record.state is RunState.completed, ended.output
    words = "began again at step 0: no state is registered with run.state()"
    assert (words in ended.record.warnings) == told
