"""Ranks below nsys end, fail and are stopped as others. The nsys here is a stand-in.

It takes nsys's options and starts what follows as its child, in a group of its own if told to. It
records nothing; how a real nsys treats signals and exit codes is not shown by it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiers import in_tiers, thorough
from waiting import LIMIT_S, until, until_ended

from hpckit.model import events
from hpckit.model.failure import ExitReason, ExitStatement
from hpckit.model.launch import LaunchConfig
from hpckit.model.settings import Observe, Profile, ProfileTool
from hpckit.model.states import RunState
from hpckit.record.layout import RoundPaths
from hpckit.record.process import read_process_start_id
from hpckit.record.store import read_events
from hpckit.runtime.agent.nsys import find_process_groups, plan_rank_start, unwrap_nsys_exit_code
from hpckit.runtime.left_behind import NSYS_VARIABLE

FAKE = f"""#!{sys.executable}
'''A stand-in for nsys, for hpckit's tests: it starts its command, and records nothing.'''
import os, pathlib, subprocess, sys
words = sys.argv[2:]
while words and words[0].startswith("--"):
    option, _, value = words.pop(0).partition("=")
    if option == "--output":
        output = pathlib.Path(value + ".nsys-rep")
pathlib.Path(os.environ["NSYS_NOTE"]).write_text(" ".join(sys.argv))
apart = bool(os.environ.get("NSYS_APART"))
child = subprocess.Popen(words, close_fds=False, process_group=0 if apart else None)
code = child.wait()
output.write_text("a stand-in's report")
sys.exit(128 - code if code < 0 else code + int(os.environ.get("NSYS_WORSE", "0")))
"""
TRAIN = """
import os, pathlib, signal, time

def note():
    pids = pathlib.Path(os.environ["NSYS_NOTE"]).with_name("pids")
    pids.write_text(f"{{os.getpid()}} {{os.environ['HPCKIT_AGENT_PID']}}")

def main(config, run):
    for step in run.steps(6):
        if step == 3:
            {0}
"""
NSYS = Observe(profile=Profile(tool=ProfileTool.nsys, ranks=[0]))


@pytest.fixture
def fake_nsys(tmp_path: Path) -> dict[str, str]:
    """Put the stand-in on a PATH; return the environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nsys").write_text(FAKE)
    (folder / "nsys").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "NSYS_NOTE": str(tmp_path / "note")}


def ended(workshop: Any, ranks: Any, line: str, environ: dict[str, str], **more: Any) -> Any:
    """Run two ranks, of which rank 0 is below the stand-in; return the attempt."""
    settings = ranks(2, observe=NSYS, **more)
    return workshop.attempt(TRAIN.format(line), environ=environ, **settings)


@pytest.mark.training
def test_rank_below_nsys_completes_and_leaves_its_report(
    workshop: Any, ranks: Any, fake_nsys: dict[str, str], tmp_path: Path
) -> None:
    """Nsys gets one window from the rank, may not kill it, and writes into the round's folder."""
    done = ended(workshop, ranks, "pass", fake_nsys)
    assert (done.code, done.record.state) == (0, RunState.completed), done.record.failure
    note = (tmp_path / "note").read_text()
    for word in ("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"):
        assert word in note
    assert done.paths.round(0).nsys_report(0).exists()
    assert not done.paths.round(0).nsys_report(1).exists()


@thorough
@pytest.mark.training
def test_report_that_fails_fails_no_run(workshop: Any, ranks: Any, fake_nsys: dict[str, str]) -> None:
    """The rank has returned; what nsys says afterwards is about nsys."""
    done = ended(workshop, ranks, "pass", fake_nsys | {"NSYS_WORSE": "3"})
    assert done.record.state is RunState.completed, done.output


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
ENDS = {
    "raise ValueError('no')": ("raised", None, 1),
    KILLED: ("killed", "SIGKILL", None),
    "os._exit(9)": ("exited", None, 9),
}


@pytest.mark.training
@pytest.mark.parametrize("apart", ["1", pytest.param("", marks=thorough)])
@pytest.mark.parametrize("line", in_tiers(ENDS, [KILLED]))
def test_end_of_a_rank_below_nsys_is_what_it_would_be_without(
    workshop: Any, ranks: Any, fake_nsys: dict[str, str], line: str, apart: str
) -> None:
    """Its exit code, or its signal, also if nsys gives it a process group of its own."""
    mine = f"if run.rank == 1: time.sleep(60)\n            {line}"
    done = ended(workshop, ranks, mine, fake_nsys | {"NSYS_APART": apart})
    assert done.record.state is RunState.failed, done.output
    (first,) = (one for one in done.exits() if one.rank == 0)
    assert (first.reason.value, first.signal, first.code) == ENDS[line]


@pytest.mark.training
@pytest.mark.parametrize("apart", ["1", pytest.param("", marks=thorough)])
def test_rank_below_nsys_is_stopped_with_its_peers(
    workshop: Any, ranks: Any, fake_nsys: dict[str, str], tmp_path: Path, apart: str
) -> None:
    """Rank 1 fails, and rank 0, which sleeps for minutes below nsys, does not remain."""
    line = "note() or time.sleep(600) if run.rank == 0 else time.sleep(2) or 1 / 0"
    done = ended(workshop, ranks, line, fake_nsys | {"NSYS_APART": apart})
    assert done.record.failure is not None
    assert "division by zero" in done.record.failure.message, done.output
    until_ended(int((tmp_path / "pids").read_text().split()[0]))


@thorough
@pytest.mark.training
def test_rank_below_nsys_does_not_outlive_its_agent(
    workshop: Any, ranks: Any, fake_nsys: dict[str, str], tmp_path: Path
) -> None:
    """The kernel ends nsys with the agent; the rank looks for itself."""
    launch = workshop.freeze(TRAIN.format("note() or time.sleep(600)"), **ranks(1, observe=NSYS))
    process = workshop.start(launch, **fake_nsys, NSYS_APART="1")
    pids = tmp_path / "pids"
    rank, agent = map(int, str(until(lambda: pids.exists() and pids.read_text())).split())
    os.kill(agent, signal.SIGKILL)
    until_ended(rank)
    process.terminate()
    process.communicate(timeout=LIMIT_S)


@pytest.mark.training
def test_node_without_nsys_starts_the_rank_and_says_so(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """One warning; the run completes."""
    done = workshop.attempt(TRAIN.format("pass"), **ranks(2, observe=NSYS))
    assert done.record.state is RunState.completed, done.output
    told = [event for event in read_events(done.paths.events) if isinstance(event, events.Warned)]
    said = [one.message.partition(" of node")[0] for one in told]
    assert said.count("nsys is not on the PATH") == 1
    assert not list(tmp_path.rglob("*.nsys-rep"))


@pytest.mark.parametrize(
    ("said", "code", "own"),
    [
        (ExitReason.returned, 0, 0),
        (ExitReason.returned, 1, 0),
        (ExitReason.left, 75, 75),
        (None, 0, 0),
        (None, 1, 1),
        (None, 137, -9),
        (None, 139, -11),
        (None, 255, 255),
        (None, -9, -9),
    ],
)
def test_code_of_nsys_is_read_as_the_rank_would_have_ended(
    said: ExitReason | None, code: int, own: int
) -> None:
    """A shell's number for a signal is that signal."""
    statement = None if said is None else ExitStatement(reason=said)
    assert unwrap_nsys_exit_code(code, statement) == own


def test_commands_start_without_nsys(tmp_path: Path) -> None:
    """Hpckit does not know what they are made of; other ranks are not touched at all."""
    settings = LaunchConfig(command=["sleep", "1"], observe=NSYS)
    found = plan_rank_start(settings, RoundPaths(tmp_path), 0, {}, "n1")
    assert found.words == ()
    assert "command" in found.variables[NSYS_VARIABLE]
    other = plan_rank_start(settings, RoundPaths(tmp_path), 1, {}, "n1")
    assert (other.words, dict(other.variables), other.problem) == ((), {}, "")


def test_groups_below_a_process_are_found() -> None:
    """What nsys put into a group of its own gets the signals, too."""
    inner = "import subprocess; subprocess.run(['sleep', '60'], process_group=0)"
    outer = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
    try:
        found = until(lambda: len(find_process_groups(outer.pid)) == 2 and find_process_groups(outer.pid))
        assert outer.pid in found
    finally:
        for group in find_process_groups(outer.pid):
            os.killpg(group, signal.SIGKILL)
        outer.wait()
        time.sleep(0.1)
    assert all(read_process_start_id(pid) is None for pid in found)
