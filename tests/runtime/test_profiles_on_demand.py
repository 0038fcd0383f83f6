"""A real attempt whose ranks are profiled while they train, and continue."""

from __future__ import annotations

import gzip
import json
import stat
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_world import Said, verb_said
from tiers import thorough
from waiting import LIMIT_S, until, until_here

from hpckit.model.failure import Cause, ExitReason, StateKept
from hpckit.model.settings import Observe, Profile
from hpckit.model.states import RunState
from hpckit.record.launches import read_run_records

pytestmark = pytest.mark.training

TRAIN = """
import os, pathlib, time
import torch, torch.distributed as dist

FLAG = pathlib.Path(os.environ["FLAG"])

def main(config, run):
    weights = torch.randn(128, 128)
    for step in run.steps(100000):
        total = (weights @ weights).sum()
        dist.all_reduce(total)
        (FLAG.parent / f"here-{run.rank}").touch()
        time.sleep(0.02)
        if run.rank == 0:
            go = torch.tensor([int(FLAG.exists())])
        else:
            go = torch.tensor([0])
        dist.broadcast(go, 0)
        if go.item():
            break
"""


def until_recorded(log: Path, touched: Path) -> None:
    """Wait until a rank that touches a file at each step has recorded some of a long profile."""
    until(lambda: "profiling 1000 steps" in log.read_text())
    for _ in range(3):
        before = touched.stat().st_mtime_ns
        until(partial(_is_newer, touched, before))


def _is_newer(file: Path, mark: int) -> bool:
    return file.stat().st_mtime_ns > mark


def check_rank(one: Any) -> None:
    """Check one of two ranks over gloo: its numbers, and its trace, whole and private."""
    assert (one["steps"], one["problem"]) == (4, None)
    found = one["summary"]
    assert (found["steps"], found["on_gpu"]) == (4, False)
    assert found["compute_s"] > 0
    assert found["communication_s"] > 0
    assert found["idle_s"] > 0.06, "four sleeps of 20 ms, but for what overlaps them"
    names = [entry["name"] for entry in found["top"]]
    assert "aten::mm" in names
    assert any("allreduce" in name or "all_reduce" in name for name in names)
    trace = Path(one["trace"])
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    assert trace.stat().st_size == one["bytes"]
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert [path.name for path in trace.parent.iterdir() if path.name[0] == "."] == []


def test_running_run_is_profiled_and_completes(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """Two ranks over gloo: both traces are there, private and summed up; training goes on."""
    flag = tmp_path / "flag"
    launch = workshop.freeze(TRAIN, **ranks(2, env={"FLAG": str(flag)}))
    run = f"{launch.folder}/runs/00000"
    process = workshop.start(launch)
    second: list[Said] = []
    try:
        until_here(process, tmp_path, 2)
        answer = verb_said("profile", run, "--ranks", "5", folder=tmp_path)
        assert (answer.code, "has ranks 0-1" in answer.err) == (2, True)
        answer = verb_said("profile", run, "--steps", "4", "--ranks", "all", "--json", folder=tmp_path)
        assert answer.code == 0, answer.err
        document = json.loads(answer.out)
        assert document["done"]
        assert [one["rank"] for one in document["ranks"]] == [0, 1]
        for one in document["ranks"]:
            check_rank(one)
        # A long one is under way: another one is refused meanwhile, with the reason.
        long = threading.Thread(
            target=lambda: second.append(verb_said("profile", run, "--steps", "1000", folder=tmp_path))
        )
        long.start()
        time.sleep(1.0)
        answer = verb_said("profile", run, "--steps", "1", folder=tmp_path)
        assert answer.code == 2
        assert "a profile of rank 0 is under way" in answer.err
        until_recorded(launch.paths.run(0).attempt(1).round(0).rank_log(0), tmp_path / "here-0")
    finally:
        flag.touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    long.join(90)
    assert second[0].code == 0, second[0].err
    text = second[0].out
    assert "its step loop was over after these steps" in text
    (record,) = read_run_records(launch)
    assert record.state is RunState.completed
    again = verb_said("profile", run, "--last", folder=tmp_path)
    assert (again.code, again.out) == (0, text)
    assert max(len(line) for line in text.splitlines() if not line.startswith("/")) <= 80
    answer = verb_said("profile", run, folder=tmp_path)
    assert (answer.code, "only a running run can be profiled" in answer.err) == (2, True)


ENDING = """
import os, time
import torch, torch.distributed as dist

def main(config, run):
    state = torch.nn.Linear(2, 2)
    if {registers}:
        run.state(model=state)
    for step in run.steps(40):
        total = torch.ones(8, 8) @ torch.ones(8, 8)
        dist.all_reduce(total)
        time.sleep(0.05)
        if step == 12 and run.round == 0 and run.rank == 1:
            {line}
"""
PLANNED = Observe(profile=Profile(at_step=8, steps=3, ranks=[0, 1]))


def shown(launch: Any, folder: Path) -> Any:
    """Return what `profile --last` says of the run."""
    answer = verb_said("profile", f"{launch.folder}/runs/00000", "--last", "--json", folder=folder)
    assert answer.code in {0, 1}, answer.err
    return json.loads(answer.out)


def test_planned_profile_is_made_without_anyone_asking(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """Steps 8 to 10 of both ranks; it does not count for the run's signature."""
    code = ENDING.format(registers=False, line="pass")
    done = workshop.attempt(code, **ranks(2, observe=PLANNED))
    assert done.record.state is RunState.completed, done.output
    found = shown(done.launch, tmp_path)
    assert (found["id"], found["done"]) == ("planned-000", True)
    for one in found["ranks"]:
        assert (one["first_step"], one["steps"], one["problem"]) == (8, 3, None)
        assert {entry["name"]: entry["count"] for entry in one["summary"]["top"]}["aten::mm"] == 3
    unplanned = workshop.freeze(code, **ranks(2))
    assert unplanned.runs[0].signature == done.launch.runs[0].signature


@thorough
@pytest.mark.parametrize(
    ("line", "word"), [("1 / 0", "division by zero"), ("os.kill(os.getpid(), 9)", "SIGKILL")]
)
def test_failure_within_a_profile_is_the_same_failure(
    workshop: Any, ranks: Any, tmp_path: Path, line: str, word: str
) -> None:
    """It ends the run as without a profile, in no more time; the profile says it ended before."""
    long = Observe(profile=Profile(at_step=8, steps=900, ranks=[0, 1]))
    began = time.monotonic()
    done = workshop.attempt(ENDING.format(registers=True, line=line), **ranks(2, observe=long))
    assert time.monotonic() - began < 60
    assert done.record.state is RunState.failed, done.output
    assert word in done.record.failure.message
    assert not list(tmp_path.rglob("*.trace.json.gz"))


def test_notice_within_a_profile_saves_and_leaves(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """As without a profile: the state comes first, and the profile is dropped, and says why."""
    long = Observe(profile=Profile(at_step=8, steps=900, ranks=[0]))
    code = ENDING.format(registers=True, line="os.kill(os.getpid(), 15)")
    with_profile = workshop.attempt(code, **ranks(2, observe=long))
    without = workshop.attempt(code, **ranks(2))
    for done in (with_profile, without):
        assert done.record.failure is not None, done.output
        assert done.record.failure.cause is Cause.left
        assert [(one.reason, one.kept) for one in done.exits()] == [(ExitReason.left, StateKept.saved)] * 2
    found = shown(with_profile.launch, tmp_path)
    assert found["ranks"][0]["problem"] == "it was asked to leave before"


def test_run_without_a_step_loop_is_told_why(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """A command that only sleeps has no steps, of which hpckit knows."""
    settings = ranks(1, command=["sleep", "60"], entry_point=None)
    launch = workshop.freeze("", **settings)
    process = workshop.start(launch)
    try:
        paths = launch.paths.run(0).attempt(1)
        until(lambda: paths.round(0).rank_log(0).exists())
        answer = verb_said("profile", f"{launch.folder}/runs/00000", folder=tmp_path)
        assert answer.code == 2, answer.err
        assert "none of its ranks has begun a step of `run.steps()` yet" in answer.err
        assert "hpckit.attach()" in " ".join(answer.err.split())
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


ATTACHED = """
import torch
import hpckit

run = hpckit.attach()
for step in run.steps(20):
    torch.ones(8, 8) @ torch.ones(8, 8)
"""


@thorough
def test_script_that_attaches_is_profiled(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """A command with a step loop is no other than a function."""
    command = [sys.executable, "task.py"]
    settings = ranks(2, command=command, entry_point=None, observe=PLANNED)
    done = workshop.attempt(ATTACHED, **settings)
    assert done.record.state is RunState.completed, done.output
    found = shown(done.launch, tmp_path)
    assert [(one["first_step"], one["steps"]) for one in found["ranks"]] == [(8, 3)] * 2
