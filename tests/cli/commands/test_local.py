"""Promises of the local executor, with real supervisors."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.model.events import LocalStarted
from hpckit.record.launches import load_launch, read_run_records
from hpckit.record.process import is_process_alive

pytestmark = pytest.mark.slow

COMMAND = ("experiment=command", "cluster=local", "code.snapshot=false")


def states(shell: Any) -> list[str]:
    """Return the states of the latest launch's runs."""
    return [run["state"] for run in json.loads(shell("status", "--json").out)["runs"]]


def executor(shell: Any) -> LocalStarted:
    """Return who works through the latest launch."""
    (started,) = (event for event in shell.events(shell.outputs[-1]) if isinstance(event, LocalStarted))
    return started


def is_alive(who: LocalStarted) -> bool:
    """Whether that very process still runs."""
    return is_process_alive(who.host, who.pid, who.started) is True


def test_local_launch_returns_at_once_and_goes_on_alone(shell: Any) -> None:
    """`launch` without --wait leaves a process behind that finishes the sweep."""
    said = shell("launch", "-m", *COMMAND, "command=sleep 0.5", "seed=1,2")
    assert said.code == 0
    who = executor(shell)
    assert os.getsid(who.pid) == who.pid
    until(lambda: not is_alive(who))
    assert states(shell) == ["completed", "completed"]


def test_local_launch_that_cannot_start_is_failed_with_the_reason(shell: Any) -> None:
    """No executor, no waiting: `status`, `watch` and `ls` say that it failed, and why."""
    words = (*COMMAND, "command=true", "cluster.python=/nope/python")
    said = shell("launch", *words, "--no-check")
    assert said.code == 1
    assert "cluster.python" in said.err
    assert states(shell) == ["failed"]
    shown = shell("status").out
    assert "the local executor cannot be started" in shown
    assert "/nope/python" in shown
    assert shell("watch").code == 1
    assert "1 failed" in shell("ls").out


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(("cluster.max_parallel=2",), marks=thorough),
        ("cluster.max_parallel=4", "sweep.max_concurrent=2"),
    ],
)
def test_local_runs_go_so_many_at_a_time(shell: Any, bounds: tuple[str, ...]) -> None:
    """No more runs overlap than the machine takes and the sweep may have, and that many do."""
    script = (
        "import os, time; d = os.environ['HPCKIT_PROJECT'] + '/now';"
        "os.makedirs(d, exist_ok=True); f = f'{d}/{os.getpid()}'; open(f, 'w').close();"
        "time.sleep(0.7); n = len(os.listdir(d)); open(d + '.log', 'a').write(f'{n} ');"
        "time.sleep(0.3); os.unlink(f)"
    )
    command = f"command=['python','-c',\"{script}\"]"
    words = ("-m", *COMMAND, command, "seed=1,2,3,4", *bounds)
    said = shell("launch", "--wait", *words)
    assert said.code == 0, said.out + said.err
    counts = [int(word) for word in (shell.cwd / "now.log").read_text().split()]
    assert len(counts) == 4
    assert max(counts) == 2


def test_local_runs_start_where_a_socket_has_no_room(shell: Any) -> None:
    """In a TMPDIR of so long a path: then each run starts a Python of its own."""
    folder = shell.cwd.parent / ("long" * 30)
    folder.mkdir()
    shell.environ["TMPDIR"] = str(folder)
    said = shell("launch", "--wait", "-m", *COMMAND, "command=sleep 0", "seed=1,2")
    assert said.code == 0, said.out + said.err
    assert states(shell) == ["completed", "completed"]


def test_local_executor_ends_with_its_runs_on_sigterm(shell: Any) -> None:
    """SIGTERM ends the runs under way, begins no other, and leaves no process."""
    shell("launch", "-m", *COMMAND, "command=sleep 60", "seed=1,2")
    who = executor(shell)
    launch = load_launch(shell.outputs[-1])
    until(lambda: read_run_records(launch)[0].round is not None)
    supervisor = read_run_records(launch)[0].supervisor
    os.kill(who.pid, signal.SIGTERM)
    until(lambda: not is_alive(who))
    assert supervisor is not None
    assert is_process_alive(*supervisor) is False
    assert states(shell) == ["interrupted", "interrupted"]
    assert read_run_records(launch)[1].attempt == 0


def test_local_runs_cancelled_before_their_turn_never_start(shell: Any) -> None:
    """A run cancelled while it waits is not begun."""
    gate = shell.cwd / "gate"
    command = "command=['sh','-c','until [ -e $HPCKIT_PROJECT/gate ]; do sleep 0.05; done']"
    said = shell("launch", "-m", *COMMAND, command, "seed=1,2")
    assert said.code == 0, said.err
    launch = shell.outputs[-1].name
    assert shell("cancel", f"{launch}.1").code == 0
    gate.touch()
    who = executor(shell)
    until(lambda: not is_alive(who))
    assert states(shell) == ["completed", "cancelled"]


def test_local_executor_that_cannot_start_says_why(shell: Any) -> None:
    """A cluster.python without hpckit is refused, or else an error with the reason, exit code 1."""
    words = ("launch", *COMMAND, "command=sleep 0", "cluster.python=/bin/false")
    assert shell(*words).code == 2
    said = shell(*words, "--no-check")
    assert said.code == 1
    assert "did not start" in said.err
