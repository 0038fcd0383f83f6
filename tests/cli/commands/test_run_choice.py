"""Promises of `resume` and `rerun` about which runs they take, with real runs on this machine."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.model import events
from hpckit.record.process import is_process_alive

pytestmark = pytest.mark.slow

JOB = "import sys\nprint('code', sys.argv[1])\nsys.exit(int(sys.argv[1]))\n"
WORDS = ("experiment=command", 'command="python job.py ${params.i}"', "cluster=local")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the sweep of this module is, and is kept."""
    return tmp_path_factory.mktemp("swept")


@pytest.fixture
def sweep(shell: Any, place: Path) -> Any:
    """Return a shell after a sweep whose runs 1, 2 and 4 failed, of 0 to 4.

    The sweep ran once; each test finds it where it ran, and as it was.
    """
    shell.cwd, kept = place / "project", place / "kept"
    if not kept.exists():
        shell.cwd.mkdir()
        (shell.cwd / "job.py").write_text(JOB)
        assert shell("launch", "--wait", "-m", *WORDS, "+params.i=0,3,1,0,3").code == 1
        (folder,) = shell.outputs
        begun = [event for event in shell.events(folder) if isinstance(event, events.LocalStarted)]
        until(lambda: not any(is_process_alive(one.host, one.pid, one.started) for one in begun))
        shutil.copytree(shell.cwd, kept, symlinks=True)
    shutil.rmtree(shell.cwd)
    shutil.copytree(kept, shell.cwd, symlinks=True)
    later = itertools.count()
    shell.tokens = lambda: f"later{next(later)}"
    return shell


def indices(said: Any) -> list[int]:
    """Return the runs that a `--json` answer is about."""
    assert said.code == 0, said.err
    return [run["index"] for run in json.loads(said.out)["runs"]]


def reran(said: Any) -> list[int]:
    """Return the runs that a rerun is of."""
    assert said.code == 0, said.err
    return [int(run.rpartition(".")[2]) for run in json.loads(said.out)["rerun_of"]]


CHOICES = [
    (("--cause", "exit_code"), [1, 2, 4]),
    (("--runs", "1-2"), [1, 2]),
    (("--failed", "--override", "params.i=3"), [1, 4]),
    (("--failed", "--override", "params.i=3", "--runs", "2-"), [4]),
    ((".4", ".1"), [1, 4]),
    ((".4", ".1", ".4", "--override", "params.i=3"), [1, 4]),
]


def test_filters_choose_alike_for_resume_and_rerun(sweep: Any) -> None:
    """Several references and filters narrow to the same runs, and a dry run changes nothing."""
    (folder,) = sweep.outputs
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for words, meant in CHOICES:
        assert indices(sweep("resume", "--dry-run", "--json", *words)) == meant, words
        assert reran(sweep("rerun", "--dry-run", "--json", *words)) == meant, words
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert sweep.outputs == [folder]


@pytest.mark.parametrize("verb", ["resume", "rerun"])
def test_choices_that_mean_nothing_are_refused(sweep: Any, verb: str) -> None:
    """Each says what there is, with exit code 2, and starts nothing."""
    (folder,) = sweep.outputs
    for words, said in (
        (("--cause", "oom"), "has 2 completed, 3 failed (causes: 3 exit_code)"),
        (("--cause", "ooom"), "causes are exception"),
        (("--state", "failed", "--runs", "0,3"), "matches --state failed --runs 0,3"),
        (("--runs", "4-5"), "has the runs 0 to 4"),
        ((".1", folder.name), "is named as a whole, and more than once"),
        ((".1", ".9"), "has no run 9"),
    ):
        refused = sweep(verb, *words)
        assert refused.code == 2, words
        assert said in refused.err, words
    assert sweep.outputs == [folder]


def test_runs_of_several_launches_are_refused(sweep: Any) -> None:
    """One launch has one frozen code."""
    assert sweep("launch", "--wait", *WORDS, "+params.i=4").code == 1
    runs = [f"{folder.name}.0" for folder in sweep.outputs]
    for verb in ("resume", "rerun"):
        refused = sweep(verb, *runs)
        assert refused.code == 2
        assert "runs of 2 launches" in refused.err


def test_resume_takes_only_the_chosen_runs(sweep: Any) -> None:
    """The others keep the attempts they had."""
    (folder,) = sweep.outputs
    assert sweep("resume", ".1", ".4", "--wait").code == 1
    counts = [len(list((folder / f"runs/{run:05d}/attempts").iterdir())) for run in range(5)]
    assert counts == [1, 2, 1, 1, 2]


def test_resume_dry_run_says_which_and_why(sweep: Any) -> None:
    """Which runs, and the reason for each; on this machine there is no script to show."""
    (folder,) = sweep.outputs
    said = sweep("resume", "--dry-run")
    assert said.code == 0, said.err
    assert said.out == (
        f"would resume 3 of 5 runs of {folder.name}\n"
        "  resume  1-2, 4: failed (exit_code), from its beginning, "
        "unless the command loads what it saved\n"
        "  left    0, 3: completed\n"
    )
    nothing = sweep("resume", "--dry-run", "--state", "completed")
    assert nothing.out == f"nothing to resume in {folder.name}\n  left    0, 3: completed\n"


def test_resume_takes_cancelled_runs_that_are_named(shell: Any) -> None:
    """By --runs as by RUN; a filter that happens to take them does not name them."""
    (shell.cwd / "job.py").write_text("import time\ntime.sleep(60)\n")
    assert shell("launch", "-m", *WORDS, "+params.i=0,0").code == 0
    assert shell("cancel", ".1").code == 0
    named = shell("resume", "--dry-run", "--json", "--runs", "1")
    taken = shell("resume", "--dry-run", "--json", "--override", "params.i=0")
    assert shell("cancel").code == 0
    assert (indices(named), indices(taken)) == ([1], [])


@thorough
def test_rerun_of_several_runs_is_one_launch(sweep: Any) -> None:
    """With today's code each of them runs anew, numbered from 0, with its own configuration."""
    (first,) = sweep.outputs
    (sweep.cwd / "job.py").write_text("import sys\nprint('mended', sys.argv[1])\n")
    said = sweep("rerun", "--cause", "exit_code", "--wait", "--json")
    assert said.code == 0, said.err
    assert "3 of 5 runs of" in said.err
    assert "it is not the same as it was" in said.err
    folder = Path(json.loads(said.out)["dir"])
    logs = [next((folder / f"runs/{run:05d}").rglob("rank-0*.log")) for run in range(3)]
    assert [log.read_text().split() for log in logs] == [["mended", i] for i in ("3", "1", "3")]
    exact = sweep("rerun", first.name, "--runs", "0,3", "--exact", "--wait", "--json")
    assert exact.code == 0, exact.err
    frozen = Path(json.loads(exact.out)["dir"]) / "code/job.py"
    assert frozen.read_text() == JOB


@thorough
def test_rerun_of_several_runs_is_one_array_on_slurm(slurm_shell: Any) -> None:
    """Runs 0 and 2 of three become elements 0 and 1 of one job, without gaps."""
    words = ("experiment=command", "command=false", "cluster=slurm", "code.snapshot=false")
    assert slurm_shell("launch", "--wait", "-m", *words, "seed=1,2,3").code == 1
    said = slurm_shell("rerun", "--runs", "0,2", "--failed", "--dry-run", "--json")
    assert reran(said) == [0, 2]
    document = json.loads(said.out)
    assert [run["index"] for run in document["runs"]] == [0, 1]
    assert [run["overrides"][-1] for run in document["runs"]] == ["seed=1", "seed=3"]
    (script,) = document["scripts"]
    assert "--array=0-1%" in script["text"]


@thorough
def test_rerun_refuses_runs_that_follow_each_other(shell: Any) -> None:
    """Nothing would make the second wait for the first; each of one stage is fine."""
    (shell.cwd / "conf/experiment").mkdir(parents=True)
    (shell.cwd / "conf/experiment/two.yaml").write_text(
        "# @package _global_\ncommand: 'true'\nparams: {i: 0}\nstages: {first: {}, second: {}}\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=shell.cwd, check=True)
    words = ("experiment=two", "cluster=local", "-m", "params.i=1,2")
    done = shell("launch", "--wait", *words)
    assert done.code == 0, done.err
    refused = shell("rerun", "--runs", "0-")
    assert refused.code == 2
    assert "run 2 of" in refused.err
    assert "follows run 0" in refused.err
    assert reran(shell("rerun", "--runs", "2-3", "--dry-run", "--json")) == [2, 3]
