"""Promises of runs that share a job, on a fake Slurm: each has its own fate, and is begun once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.model import events
from hpckit.record.attempts import read_events_by_attempt
from hpckit.record.launches import load_launch
from hpckit.record.store import read_json

pytestmark = pytest.mark.slow

QUICK = ("-m", "experiment=command", "code.snapshot=false", "cluster=slurm")

RUN = """\
here=$HPCKIT_PROJECT
echo "$HPCKIT_RUN_INDEX $TMPDIR" >> $here/began
pid='s/.*"attempt_started".*"pid":\\([0-9]*\\).*/\\1/p'
case $1 in
    crash) [ -e $here/mended ] || exit 7;;
    lose) [ $(grep -c "^$HPCKIT_RUN_INDEX " $here/began) -gt 1 ] ||
        { kill -9 $(sed -n "$pid" $HPCKIT_ATTEMPT_DIR/events.jsonl); sleep 60; };;
    wait) while [ ! -e $here/go ]; do sleep 0.2; done;;
esac
echo "$HPCKIT_RUN_INDEX" >> $here/ended
"""


def launch(shell: Any, *words: str, does: str) -> str:
    """Launch runs that do this, and return the launch's id."""
    (shell.cwd / "run.sh").write_text(RUN)
    command = "command=[sh,${oc.env:PWD}/run.sh,'${params.does}']".replace("${oc.env:PWD}", str(shell.cwd))
    said = shell("launch", "--json", "--no-check", *QUICK, command, *words, f"+params.does={does}")
    assert said.code == 0, said.err
    name: str = json.loads(said.out)["launch"]
    return name


def states(shell: Any) -> list[str]:
    """Return the state of each run by `status`."""
    said = shell("status", "--json")
    assert said.code == 0, said.err
    return [run["state"] for run in json.loads(said.out)["runs"]]


def lines(shell: Any, name: str) -> Counter[int]:
    """Return how often each run has left a line in a file."""
    path = shell.cwd / name
    text = path.read_text() if path.exists() else ""
    return Counter(int(line.split()[0]) for line in text.splitlines())


def attempts(shell: Any, run: int) -> list[list[events.Event]]:
    """Return the events of each attempt of a run."""
    return [list(told) for _, told in read_events_by_attempt(load_launch(shell.outputs[0]).paths.run(run))]


@thorough
def test_runs_of_one_job_have_each_their_own_end(slurm_shell: Any) -> None:
    """One crashes, one loses its supervisor, one is cancelled, one waits: the others complete."""
    name = launch(
        slurm_shell, "sweep.runs_per_job=3", "sweep.max_concurrent=3", does="crash,lose,wait,fine,fine,fine"
    )
    until(lambda: lines(slurm_shell, "ended") == Counter([1, 3, 4, 5]))
    until(lambda: states(slurm_shell)[2] == "running")
    assert slurm_shell("cancel", f"{name}.2").code == 0
    until(lambda: "running" not in states(slurm_shell))
    assert states(slurm_shell) == ["failed", "completed", "cancelled", *["completed"] * 3]
    assert lines(slurm_shell, "began") == Counter([0, 1, 1, 2, 3, 4, 5])
    lost, again = attempts(slurm_shell, 1)
    ended = lost[-1]
    assert isinstance(ended, events.AttemptEnded)
    assert ended.failure is not None
    assert (ended.failure.cause, ended.exit_code) == ("launcher_lost", 128 + signal.SIGKILL)
    assert isinstance(again[-1], events.AttemptEnded)
    folders = {line.split()[1] for line in (slurm_shell.cwd / "began").read_text().splitlines()}
    assert len(folders) == 3
    until(lambda: not any(Path(folder).exists() for folder in folders))

    (slurm_shell.cwd / "mended").touch()
    assert slurm_shell("resume").code == 0
    until(lambda: states(slurm_shell)[0] == "completed")
    (_, added) = load_launch(slurm_shell.outputs[0]).jobs
    assert added.shared_job is not None
    assert (added.runs, added.shared_job.slots) == ((0,), 1)


@thorough
def test_job_that_is_requeued_takes_only_what_is_unfinished(slurm_shell: Any, fake_slurm: Any) -> None:
    """Its next start finds what it had, ends it, and works through the rest; nothing twice."""
    launch(slurm_shell, "sweep.runs_per_job=2", "sweep.max_concurrent=2", does="fine,wait,wait,fine,crash")
    until(lambda: lines(slurm_shell, "began") == Counter([0, 1, 2]))
    (job,) = {run["job"] for run in json.loads(slurm_shell("status", "--json").out)["runs"]}
    fake_slurm.slurm("scontrol", "requeue", job)
    until(lambda: len(attempts(slurm_shell, 1)) == len(attempts(slurm_shell, 2)) == 2)
    (slurm_shell.cwd / "go").touch()
    until(lambda: set(states(slurm_shell)) == {"completed", "failed"})
    assert states(slurm_shell) == [*["completed"] * 4, "failed"]
    assert lines(slurm_shell, "ended") == Counter([0, 1, 2, 3])
    first = [attempt for attempt in attempts(slurm_shell, 1)[0] if isinstance(attempt, events.AttemptEnded)]
    assert [one.state for one in first] == ["interrupted"]
    claims = sorted((slurm_shell.outputs[0] / "claims" / "0").iterdir())
    assert [read_json(claim)["restart_count"] for claim in claims] == [0, 1, 1, 1, 1]


@thorough
def test_jobs_that_share_runs_begin_each_once(slurm_shell: Any) -> None:
    """Three jobs with two slots work through twelve runs; all are ended by one cancellation."""
    does = ",".join(["fine"] * 6 + ["wait"] * 6)
    name = launch(slurm_shell, "sweep.runs_per_job=2", "sweep.max_concurrent=6", does=does)
    until(lambda: lines(slurm_shell, "began") == Counter(range(12)))
    until(lambda: states(slurm_shell) == [*["completed"] * 6, *["running"] * 6])
    jobs = {run["job"] for run in json.loads(slurm_shell("status", "--json").out)["runs"]}
    assert len(jobs) == 3
    assert slurm_shell("cancel", name).code == 0
    until(lambda: states(slurm_shell)[6:] == ["cancelled"] * 6)
    assert states(slurm_shell)[:6] == ["completed"] * 6
    assert lines(slurm_shell, "began") == Counter(range(12))
