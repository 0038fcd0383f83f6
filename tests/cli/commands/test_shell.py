"""Promises of `hpckit shell`: real processes, on this machine and in jobs of the fake Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell_in
from pseudo_terminal import Sitting
from tiers import thorough
from waiting import LIMIT_S, run_to_end, until

from hpckit.errors import UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.process import this_host

RUNS = ("experiment=command", "+env.FOO=bar baz", "+env.API_TOKEN=hf_0123456789abcdef")
SLEEP = "command=[sh,-c,'touch $HPCKIT_RUN_DIR/ready; exec sleep 300']"


class Caller:
    """Starts `hpckit shell` as a person does, in processes of its own."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def argv(self, *words: str) -> list[str]:
        """Return its command line."""
        return [sys.executable, "-P", "-m", "hpckit", "shell", *words]

    def __call__(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end, with this text on its standard input."""
        return run_to_end(self.argv(*words), cwd=self.shell.cwd, env=self.shell.environ, input=text)


def begin(shell: Any, *words: str, runs: int = 1) -> Path:
    """Launch and wait until the ranks of all runs sleep; return the launch folder."""
    said = shell("launch", *RUNS, SLEEP, *words, "--json")
    assert said.code == 0, said.err
    folder = Path(json.loads(said.out)["dir"])
    until(lambda: len([*folder.glob("runs/*/ready")]) == runs)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, path_without_slurm: str) -> Iterator[Caller]:
    """Return a caller on a machine without Slurm, where a run sleeps until the last test."""
    cwd = tmp_path_factory.mktemp("project")
    caller = Caller(shell_in(cwd, {**os.environ, "PATH": path_without_slurm}))
    try:
        begin(caller.shell, "cluster=local")
        yield caller
    finally:
        caller.shell("cancel", "--all")


@pytest.fixture
def on_slurm(slurm_shell: Any) -> Iterator[Caller]:
    """Return a caller on a host with the fake Slurm; end what it launched."""
    yield Caller(slurm_shell)
    slurm_shell("cancel", "--all")


def test_shell_runs_a_command_in_the_runs_place(local: Caller) -> None:
    """It has the ranks' environment, secrets too, their folder, and says nothing of its own."""
    (folder,) = local.shell.outputs
    script = "pwd; echo $FOO; echo $API_TOKEN; echo $HPCKIT_RUN_DIR; echo rank=$RANK$HPCKIT_RANK"
    done = local("--", "sh", "-c", script)
    run = folder / "runs/00000"
    lines = [str(run / "work"), "bar baz", "hf_0123456789abcdef", str(run), "rank="]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")


def test_shell_passes_input_and_exit_code(local: Caller) -> None:
    """Standard input reaches the command, and its exit code comes back, also from a shell."""
    assert local("--", "sh", "-c", "read x; echo got $x; exit 7", text="this\n").stdout == ("got this\n")
    assert local("--", "sh", "-c", "exit 7").returncode == 7
    done = local(text="echo $FOO; exit 3\n")
    assert (done.returncode, done.stdout) == (3, "bar baz\n")
    # Python ignores SIGPIPE; a program that it becomes must not.
    assert local("--", "sh", "-c", "kill -PIPE $$; echo alive").returncode == -signal.SIGPIPE


def test_shell_leaves_the_run_alone(local: Caller) -> None:
    """What ends in the shell is the shell: the run continues, and it is nobody's rank."""
    assert local("--", sys.executable, "-c", "import hpckit").returncode == 0
    (run,) = json.loads(local.shell("status", "--json").out)["runs"]
    assert run["state"] == "running"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_shell_passes_signals(local: Caller, number: signal.Signals) -> None:
    """The process of `hpckit shell` is the command's: a signal reaches it, and no traceback."""
    argv = local.argv("--", "sh", "-c", "echo begun; exec sleep 60")
    with subprocess.Popen(
        argv, cwd=local.shell.cwd, env=local.shell.environ, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (-number, b"")


def test_shell_on_a_terminal_is_a_shell(local: Caller) -> None:
    """It says where it is; the program sits at that very terminal, and Ctrl-C is its own."""
    environ = {**local.shell.environ, "SHELL": "/bin/sh", "PS1": "$ "}
    with Sitting(words=["shell"], cwd=local.shell.cwd, environ=environ) as sitting:
        sitting.until("attempt 1, on ")
        sitting.press("test -t 0 && echo a tty$FOO\n")
        sitting.until("a ttybar baz")
        sitting.press("sleep 60; echo status $?\n")
        time.sleep(0.5)
        sitting.press("\x03")
        sitting.press("echo here$((1 + 1))\n")
        sitting.until("here2")
        sitting.press("exit 5\n")
        assert sitting.exit_code() == 5


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("/", 126)])
def test_shell_says_what_cannot_be_started(local: Caller, name: str, code: int) -> None:
    """As shells do, with one line that names it."""
    done = local("--", name)
    assert (done.returncode, done.stdout) == (code, "")
    assert f"hpckit: error: cannot start '{name}'" in done.stderr


def test_shell_wants_a_running_run(desk: Any, writer: Any) -> None:
    """A run that waits, one that ended, and several that run are refused by name."""
    launch = desk.freeze()
    with pytest.raises(UsageError, match=rf"run {launch.id}\.0 is not running \(pending\)"):
        enter(desk, launch.id)
    writer(launch=launch).start()
    writer(launch=launch).complete()
    with pytest.raises(UsageError, match=r"\(completed\): only a running run"):
        enter(desk, launch.id)
    several = desk.freeze("several", minute=1, sweep=[("a=1",), ("a=2",), ("a=3",)])
    for index in (0, 2):
        writer(launch=several, index=index).start()
    with pytest.raises(UsageError, match="several") as caught:
        enter(desk, several.id)
    assert f"{several.id}.0, {several.id}.2" in caught.value.hint
    with pytest.raises(UsageError, match=r"\.1 is not running \(pending\)"):
        enter(desk, f"{several.id}.1")


def enter(desk: Any, *words: str) -> None:
    """Try to enter; only to be refused."""
    desk.say("shell", *words)


def test_shell_of_another_host_says_where(desk: Any, writer: Any) -> None:
    """Without Slurm, processes of another machine are out of reach."""
    launch = desk.freeze()
    writer(launch=launch).start()
    with pytest.raises(UsageError, match=f"is on elsewhere, but this host is {this_host()}"):
        enter(desk, launch.id)


def test_shell_refuses_a_node_that_is_not_of_the_run(desk: Any, writer: Any, fake_slurm: Any) -> None:
    """The nodes it has are named."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job="7"))
    writer(launch=launch).start(job="7")
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    with pytest.raises(UsageError, match="not on node 'n9'; it is on n1, n2"):
        enter(desk, launch.id, "--node", "n9")


def test_shell_wants_a_command_behind_dashes(local: Caller) -> None:
    """Nothing after -- is a mistake, not a shell."""
    done = local("--")
    assert (done.returncode, "no command follows --" in done.stderr) == (2, True)
    empty = local("--", "")
    assert (empty.returncode, "is an empty word" in empty.stderr) == (2, True)


def test_shell_enters_the_job_by_a_step(on_slurm: Caller) -> None:
    """On Slurm the command runs in a step of the run's job, on the node that was named."""
    begin(on_slurm.shell, "resources.nodes=2", "resources.tasks_per_node=1")
    script = "read x; echo $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_STEP_NUM_TASKS $FOO $x; exit 4"
    for node, words in (("n1", ()), ("n2", ("--node", "n2"))):
        done = on_slurm(*words, "--", "sh", "-c", script, text="in\n")
        (run,) = json.loads(on_slurm.shell("status", "--json").out)["runs"]
        assert (done.returncode, done.stdout) == (4, f"{run['job']} {node} 1 bar baz in\n")


@thorough
def test_shell_of_an_array_element_enters_its_own_job(on_slurm: Caller, fake_slurm: Any) -> None:
    """Elements are known to srun by their own number only; each run has its folder."""
    begin(on_slurm.shell, "+params.i=1,2,3", "-m", runs=3)
    numbers = set()
    for index in range(3):
        done = on_slurm(f".{index}", "--", "sh", "-c", "echo $SLURM_JOB_ID $HPCKIT_RUN_INDEX")
        number, run = done.stdout.split()
        assert run == str(index)
        numbers.add(number)
    assert len(numbers) == 3
    jobs = [json.loads(file.read_text()) for file in (fake_slurm.folder / "jobs").glob("*.json")]
    assert numbers == {str(job["id"]) for job in jobs if job["index"] is not None}


@thorough
def test_shell_of_a_run_that_shares_a_job_has_its_own_environment(on_slurm: Caller) -> None:
    """It enters the job that carries the run, and sees the run's folder and TMPDIR."""
    folder = begin(on_slurm.shell, "+params.i=1,2", "-m", "sweep.runs_per_job=2", runs=2)
    seen = [
        on_slurm(f".{index}", "--", "sh", "-c", "echo $HPCKIT_RUN_DIR $TMPDIR $SLURM_JOB_ID")
        for index in range(2)
    ]
    (first, temp, job), (second, other_temp, other_job) = [one.stdout.split() for one in seen]
    assert (first, second) == tuple(str(folder / "runs" / f"0000{index}") for index in range(2))
    assert (temp != other_temp, job) == (True, other_job)


def test_shell_says_what_slurm_refuses(on_slurm: Caller, fake_slurm: Any) -> None:
    """With the controller away there is no step: srun's own words, and no exit code 0."""
    begin(on_slurm.shell)
    fake_slurm.fail("controller-away")
    done = on_slurm("--", "true")
    fake_slurm.mend("controller-away")
    assert done.returncode == 1
    assert "Unable to contact slurm controller" in done.stderr


@pytest.fixture
def variables() -> Callable[[str], dict[str, str]]:
    """Return a reader of what `env -0` printed."""
    return lambda text: dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def test_shell_between_two_rounds_has_the_environment_too(
    local: Caller, variables: Callable[[str], dict[str, str]]
) -> None:
    """Without a rank to take it from it is made as the agent makes it, secrets too."""
    whole = variables(local("--", "env", "-0").stdout)
    made = run_to_end(
        [sys.executable, "-c", MADE, whole["HPCKIT_LAUNCH_DIR"]], env=local.shell.environ, check=True
    ).stdout
    alike = {name: whole.get(name) for name in ("FOO", "API_TOKEN", "PYTHONPATH", "PATH")}
    assert {name: json.loads(made).get(name) for name in alike} == alike


MADE = """\
import json, os, sys
from pathlib import Path
from hpckit.record.launches import load_launch
from hpckit.runtime.run_shell import build_shell_environment
# There is no attempt 2, and so no rank of it.
print(json.dumps(build_shell_environment(load_launch(Path(sys.argv[1])), 0, 2, dict(os.environ))))
"""
