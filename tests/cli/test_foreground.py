"""`hpckit launch --foreground` at a real terminal: one rank, and a person who types."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pseudo_terminal import Sitting
from tiers import thorough

pytestmark = pytest.mark.slow

ASK = """\
import sys
print("terminal", sys.stdin.isatty(), sys.stdout.isatty())
y = 41 + 1
breakpoint()
print("after", y)
"""
WAIT = """\
import time
try:
    print("ready")
    time.sleep(600)
except KeyboardInterrupt:
    print("caught")
    raise
"""
TRAIN = """\
def main(config, run):
    for step in run.steps(3):
        if step == 1:
            breakpoint()
        run.log(step=step, loss=0.5 - step)
"""

Sit = Callable[..., Sitting]


@pytest.fixture
def sit(shell: Any) -> Sit:
    """Return who launches in the foreground and presses keys once a text has appeared."""

    def launch(*words: str, press: tuple[tuple[str, str], ...] = (), code: int = 0) -> Sitting:
        words = ("launch", "--foreground", *words)
        with Sitting(words=words, cwd=shell.cwd, environ=shell.environ) as person:
            for text, keys in press:
                person.until(text)
                person.press(keys)
            assert person.exit_code() == code, person.said
        return person

    return launch


def run(shell: Any) -> Any:
    """Return what `status --json` says of the only run."""
    (only,) = json.loads(shell("status", shell.outputs[-1].name, "--json").out)["runs"]
    return only


def test_a_command_asks_and_is_answered(shell: Any, sit: Sit) -> None:
    """breakpoint() works, prints come at once, and the launch is an ordinary one afterwards."""
    (shell.cwd / "ask.py").write_text(ASK)
    person = sit("--", "python", "ask.py", press=(("(Pdb)", "p y\r"), ("42", "c\r")))
    assert "terminal True True" in person.said
    assert "after 42" in person.said
    assert (run(shell)["state"], run(shell)["attempt"]) == ("completed", 1)
    log = shell("logs", shell.outputs[-1].name).out
    assert "after 42\n" in log
    assert "\r" not in log
    assert "sleep" not in [event.kind for event in shell.events(shell.outputs[0])]


def test_a_function_stands_at_a_breakpoint_and_keeps_what_it_logged(shell: Any, sit: Sit) -> None:
    """Steps, metrics and checkpoints are those of any launch."""
    (shell.cwd / "fn.py").write_text(TRAIN)
    words = ("experiment=function", "entry_point=fn:main")
    sit(*words, press=(("(Pdb)", "p step\r"), ("1\r\n(Pdb)", "c\r")))
    assert run(shell)["state"] == "completed"
    assert run(shell)["metrics"]["loss"] == -1.5
    (found,) = json.loads(shell("results", shell.outputs[-1].name, "--json").out)["runs"]
    assert found["metrics"]["loss"] == -1.5


def test_ctrl_c_is_a_keyboard_interrupt_in_the_users_code(shell: Any, sit: Sit) -> None:
    """It reaches nothing else: the run ends as cancelled, with code 130, and can be resumed."""
    (shell.cwd / "wait.py").write_text(WAIT)
    person = sit("--", "python", "wait.py", press=(("ready", "\x03"),), code=130)
    assert "caught" in person.said
    assert "KeyboardInterrupt" in person.said
    assert "hpckit/" not in person.said.partition("caught")[2].partition("hpckit: ")[0]
    assert run(shell)["state"] == "cancelled"
    assert "caught" in shell("logs", shell.outputs[-1].name).out
    (shell.cwd / "wait.py").write_text("print('again')")
    (folder,) = shell.outputs
    resumed = shell("resume", f"{folder.name}.0", "--dry-run")
    assert resumed.code == 0, resumed.err


def test_a_failure_is_said_once_and_nothing_starts_again(shell: Any, sit: Sit) -> None:
    """The traceback is the program's own; status knows it, too, and no restart hides it."""
    (shell.cwd / "bad.py").write_text("raise ValueError('of mine')")
    person = sit("--", "python", "bad.py", code=1)
    assert person.said.count("ValueError: of mine") == 1
    failed = run(shell)
    assert (failed["state"], failed["round"]) == ("failed", 0)
    assert "ValueError: of mine" in failed["failure"]["message"]


@thorough
def test_ctrl_c_that_the_code_survives_ends_nothing(shell: Any, sit: Sit) -> None:
    """Code that catches it and returns has completed."""
    (shell.cwd / "calm.py").write_text(WAIT.replace("    raise\n", ""))
    sit("--", "python", "calm.py", press=(("ready", "\x03"),))
    assert run(shell)["state"] == "completed"


@thorough
def test_it_runs_again_what_has_completed(shell: Any, sit: Sit) -> None:
    """Who wants to look at a run is not told that it is known already."""
    (shell.cwd / "say.py").write_text("print('said it')")
    for count in (1, 2):
        assert "said it" in sit("--", "python", "say.py").said
        assert len(shell.outputs) == count


def test_a_terminal_that_closes_ends_the_run(shell: Any) -> None:
    """Nothing is left behind that nobody sees."""
    (shell.cwd / "wait.py").write_text(WAIT)
    words = ("launch", "--foreground", "--", "python", "wait.py")
    with Sitting(words=words, cwd=shell.cwd, environ=shell.environ) as person:
        person.until("ready")
    assert shell("watch", shell.outputs[-1].name).code == 1
    assert run(shell)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "seed=1,2", "--", "true"), "takes one run, and this is a sweep of 2"),
        (("resources=cpu_pair", "--", "true"), "resources.tasks_per_node is 2"),
        (("resources.nodes=2", "--", "true"), "here: resources=cpu (one rank)"),
        (("cluster=slurm", "--", "true"), "the chosen cluster is Slurm"),
        (("resources.partition=gpu", "--", "true"), "nothing reads resources.partition"),
        (("--json", "--", "true"), "cannot combine --foreground with --json"),
        (("--auto-resume", "--", "true"), "cannot combine --foreground with --auto-resume"),
        (("--wait", "--", "true"), "cannot combine --foreground with --wait"),
    ],
)
def test_what_cannot_be_in_the_foreground_is_refused(
    shell: Any, sit: Sit, words: tuple[str, ...], said: str
) -> None:
    """One clear message each, and nothing is written."""
    assert said in " ".join(sit(*words, code=2).said.split())
    assert shell.outputs == []


def test_without_a_terminal_it_is_refused(shell: Any) -> None:
    """It says what shows the output instead."""
    said = shell("launch", "--foreground", "--", "true")
    assert said.code == 2
    assert "--foreground needs a terminal" in said.err
    assert "--wait --follow" in said.err
    assert shell.outputs == []


def test_completed_foreground_run_is_not_reused(shell: Any, sit: Sit) -> None:
    """The user looked at it; a launch of the same runs anew."""
    sit("--", "true", code=0)
    said = shell("launch", "--wait", "cluster=local", "--", "true")
    assert said.code == 0, said.err
    assert "already completed" not in said.err
    assert "launched" in said.out
