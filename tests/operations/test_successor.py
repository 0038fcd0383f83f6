"""Promises of the successor that a supervisor queues behind its own job, on a fake Slurm."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context
from tiers import thorough
from waiting import until

from hpckit.context import Context
from hpckit.model import events
from hpckit.model.cluster.allocation import AttemptRequest
from hpckit.operations.successor import cancel_successor, exclude_successor_nodes, queue_successor
from hpckit.record.launches import Launch, load_launch, read_launch_history, read_run_records

pytestmark = pytest.mark.slow

QUICK = ("experiment=command", "code.snapshot=false", "cluster=slurm")
WAITS = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done']"

QUEUE = """
import os, sys, time
from datetime import UTC, datetime
from pathlib import Path
from hpckit.context import Context
from hpckit.operations.successor import queue_successor
from hpckit.record.launches import load_launch
launch = load_launch(Path(sys.argv[1]))
context = Context(
    environ=dict(os.environ), cwd=Path("/"), stdout=sys.stdout, stderr=sys.stderr,
    now=lambda: datetime.now(UTC), sleep=time.sleep,
)
queue_successor(launch, 1, launch.jobs[0], "1_1", context)
"""
"""A process that queues a successor of the second run."""


def living(fake_slurm: Any) -> list[str]:
    """Return the names of the jobs that wait or run."""
    text: str = fake_slurm.slurm("squeue", "--noheader", "--Format=Name:0|")
    return [line.rstrip("|") for line in text.splitlines()]


def shown(shell: Any) -> list[tuple[str, str]]:
    """Return state and job of the runs by `status`."""
    runs = json.loads(shell("status", "--json").out)["runs"]
    return [(run["state"], run["job"]) for run in runs]


@pytest.fixture
def context(slurm_shell: Any) -> Context:
    """Return the world of a supervisor on the fake cluster."""
    return make_context(Path("/"), slurm_shell.environ, sleep=lambda _: time.sleep(0.01))


@pytest.fixture
def launch(slurm_shell: Any) -> Launch:
    """Return a launch of two runs that have begun, as job 1_0 and 1_1."""
    assert slurm_shell("launch", "-m", *QUICK, WAITS, "seed=1,2").code == 0
    begun = load_launch(slurm_shell.outputs[0])
    until(lambda: all(record.round is not None for record in read_run_records(begun)))
    return begun


@thorough
def test_successor_waits_behind_its_run_alone(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """It is a job of this one run, for after the array element; the present job stays the run's."""
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert job == "3"
    script = (launch.folder / "job-1.sbatch").read_text()
    assert "#SBATCH --dependency=afterany:1_1\n" in script
    assert "#SBATCH --requeue\n" in script, "as the job before it"
    assert "--array" not in script
    assert shown(slurm_shell) == [("running", "1_0"), ("running", "1_1")]
    assert f"{launch.id}-1" in living(fake_slurm)
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_is_the_run_s_job_once_the_present_one_has_ended(
    slurm_shell: Any, launch: Launch, context: Context
) -> None:
    """Nothing else needs to be asked for: it begins the next attempt, and is the job shown."""
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    host, pid, _ = read_run_records(launch, [1])[0].supervisor or ("", 0, "")
    assert host
    os.kill(pid, signal.SIGKILL)
    until(lambda: read_run_records(launch, [1])[0].attempt == 2)
    assert shown(slurm_shell)[1] == ("running", job)
    (slurm_shell.cwd / "fixed").touch()
    until(lambda: [state for state, _ in shown(slurm_shell)] == ["completed"] * 2)


def test_successor_keeps_resume_from_submitting_the_run_again(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """Between the end of the present job and its start, the run waits, and is left alone."""
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    # Slurm takes its time: the successor stays in the queue although its turn has come.
    path = fake_slurm.folder / "jobs" / "3.json"
    path.write_text(path.read_text().replace('"reason": "None"', '"reason": "Priority"'))
    fake_slurm.slurm("scancel", "--signal=KILL", "1_1")
    until(lambda: shown(slurm_shell)[1] == ("pending", job))
    said = slurm_shell("resume", f"{launch.id}.1")
    assert said.code == 0, said.err
    assert "it waits already" in said.out
    fake_slurm.slurm("scontrol", "release", "3")
    (slurm_shell.cwd / "fixed").touch()
    until(lambda: [state for state, _ in shown(slurm_shell)] == ["completed"] * 2)


@thorough
def test_successor_of_a_successor_follows_it(slurm_shell: Any, launch: Launch, context: Context) -> None:
    """Each attempt queues the next one: what was a successor is then the present job."""
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    (first,) = [record for record in read_run_records(launch, [1]) if record.supervisor]
    os.kill(first.supervisor[1] if first.supervisor else 0, signal.SIGKILL)
    until(lambda: read_run_records(launch, [1])[0].attempt == 2)
    now = load_launch(launch.folder)
    second = queue_successor(now, 1, now.jobs[1], str(job), context)
    history = read_launch_history(load_launch(launch.folder))
    assert (history.find_job_of_run(1).index, history.slurm_jobs[1]) == (1, job)
    assert history.find_successor_job(1) == second
    assert shown(slurm_shell)[1] == ("running", job)
    assert cancel_successor(now, 1, str(job), context)
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_is_queued_once_where_slurm_starts_the_job_anew(
    slurm_shell: Any, launch: Launch, context: Context
) -> None:
    """The one that still waits for this very job is taken; there is no second."""
    first = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert queue_successor(launch, 1, launch.jobs[0], "1_1", context) == first
    assert len(load_launch(launch.folder).jobs) == 2
    (slurm_shell.cwd / "fixed").touch()


def test_successor_that_two_processes_queue_at_once_is_one(
    slurm_shell: Any, launch: Launch, context: Context
) -> None:
    """Such as a supervisor, and whoever finds it lost: what is being submitted is waited for."""
    with ThreadPoolExecutor(3) as threads:
        words = launch, 1, launch.jobs[0], "1_1", context
        asked = [threads.submit(queue_successor, *words) for _ in range(3)]
    assert {one.result() for one in asked} == {"3"}
    assert len(load_launch(launch.folder).jobs) == 2
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_that_is_dropped_leaves_the_run_as_it_was(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """It is cancelled in Slurm and none of the launch's any more; the run itself goes on."""
    queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert cancel_successor(launch, 1, "1_1", context)
    assert f"{launch.id}-1" not in living(fake_slurm)
    assert read_launch_history(load_launch(launch.folder)).successors == {}
    assert shown(slurm_shell)[1] == ("running", "1_1")
    assert cancel_successor(launch, 1, "1_1", context)
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_leaves_out_the_nodes_that_its_run_excludes(
    launch: Launch, context: Context, slurm_shell: Any
) -> None:
    """It is queued ahead, before anything is known to be bad; and without one that is said."""
    wish = AttemptRequest(excluded=("n1",))
    none = exclude_successor_nodes(launch, 1, launch.jobs[0], wish, context)
    assert (none.outcome, none.message) == ("refused", "no successor is queued")
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    handed = exclude_successor_nodes(launch, 1, launch.jobs[0], wish, context)
    assert (handed.outcome, handed.excluded) == ("requeued", ("n1",))
    assert f"job {job} waits" in handed.message
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_never_drops_the_job_it_is_called_from(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """An attempt of the successor's own that has queued no other drops nothing."""
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert cancel_successor(launch, 1, str(job), context)
    assert f"{launch.id}-1" in living(fake_slurm)
    (slurm_shell.cwd / "fixed").touch()


def test_cancel_takes_the_successor_along(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """A cancelled run has nothing left in the queue, and gets no new successor."""
    queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert slurm_shell("cancel", f"{launch.id}.1").code == 0
    until(lambda: shown(slurm_shell)[1] == ("cancelled", "1_1"))
    assert f"{launch.id}-1" not in living(fake_slurm)
    assert queue_successor(launch, 1, launch.jobs[0], "1_1", context) is None
    (slurm_shell.cwd / "fixed").touch()


@pytest.mark.parametrize("mode", ["lose-answer", pytest.param("controller-away", marks=thorough)])
def test_successor_is_submitted_once_whatever_slurm_answers(
    slurm_shell: Any, launch: Launch, fake_slurm: Any, mode: str
) -> None:
    """Away, or its answer lost: it is asked what it has before it is asked again."""
    fake_slurm.fail(mode)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            fake_slurm.mend(mode)

    context = make_context(Path("/"), slurm_shell.environ, sleep=sleep)
    job = queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    if mode == "lose-answer":
        # sbatch said no, and had submitted: what was found is taken back.
        fake_slurm.mend(mode)
        assert job is None
    else:
        assert job == "3"
    assert living(fake_slurm).count(f"{launch.id}-1") == (mode != "lose-answer")
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_successor_that_cannot_be_is_said_and_ends_nothing(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """No sbatch on the node: None, and a warning."""
    for program in ("sbatch", "scancel", "squeue"):
        fake_slurm.remove(program)
    assert queue_successor(launch, 1, launch.jobs[0], "1_1", context) is None
    assert isinstance(context.stderr, io.StringIO)
    assert "has no successor" in context.stderr.getvalue()
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_history_of_a_launch_with_successors_reads_alike(
    slurm_shell: Any, launch: Launch, context: Context
) -> None:
    """A launch read before its successor was added, and one read after, mean the same."""
    queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    assert read_launch_history(launch) == read_launch_history(load_launch(launch.folder))
    added = [event for event in slurm_shell.events(launch.folder) if isinstance(event, events.JobAdded)]
    assert [(one.successor, one.fresh, one.after) for one in added] == [(True, False, (1,))]
    (slurm_shell.cwd / "fixed").touch()


@pytest.fixture
def slow_sbatch(slurm_shell: Any, tmp_path: Path) -> Any:
    """Return Slurm's programs with an sbatch that says when it was called, and waits to be let."""
    folder = tmp_path / "slow"
    folder.mkdir()
    wrapper = folder / "sbatch"
    wrapper.write_text(
        f"#!/bin/sh\necho >> {folder}/called\nuntil [ -e {folder}/go ]; do sleep 0.05; done\n"
        f'PATH=${{PATH#*:}}; exec sbatch "$@"\n'
    )
    wrapper.chmod(0o755)
    path = f"{folder}:{slurm_shell.environ['PATH']}"
    return folder, {**slurm_shell.environ, "PATH": path}


def hurried(environ: dict[str, str], slept: list[float]) -> Context:
    """Return the world of a process for which every pause lasts as long as it asks for."""
    begin = datetime.now(UTC)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(0.02)

    return make_context(Path("/"), environ, now=lambda: begin + timedelta(seconds=sum(slept)), sleep=sleep)


def test_successor_that_another_process_submits_slowly_is_waited_for(
    slurm_shell: Any, launch: Launch, fake_slurm: Any, slow_sbatch: Any
) -> None:
    """For as long as sbatch takes: nothing is queued twice, whoever asks first."""
    folder, environ = slow_sbatch
    waits: list[float] = []
    words = launch, 1, launch.jobs[0], "1_1"
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(queue_successor, *words, hurried(environ, []))
        until((folder / "called").exists)
        second = threads.submit(queue_successor, *words, hurried(slurm_shell.environ, waits))
        until(lambda: sum(waits) > 60 or second.done())
        (folder / "go").touch()
        assert {first.result(), second.result()} == {"3"}
    assert living(fake_slurm).count(f"{launch.id}-1") == 1
    assert len(load_launch(launch.folder).jobs) == 2
    (slurm_shell.cwd / "fixed").touch()


def test_successor_of_a_submitter_that_was_killed_is_adopted(
    slurm_shell: Any, launch: Launch, fake_slurm: Any, slow_sbatch: Any
) -> None:
    """Its sbatch lives on, and what that submits is the successor: there is no other."""
    folder, environ = slow_sbatch
    killed = subprocess.Popen(
        [sys.executable, "-c", QUEUE, str(launch.folder)], env={**os.environ, **environ}
    )
    until((folder / "called").exists)
    killed.kill()
    killed.wait()
    waits: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        context = hurried(slurm_shell.environ, waits)
        other = threads.submit(queue_successor, launch, 1, launch.jobs[0], "1_1", context)
        until(lambda: sum(waits) > 30 or other.done())
        (folder / "go").touch()
        assert other.result() == "3"
    assert living(fake_slurm).count(f"{launch.id}-1") == 1
    assert read_launch_history(load_launch(launch.folder)).find_successor_job(1) == "3"
    (slurm_shell.cwd / "fixed").touch()


def test_successor_that_turns_up_late_is_of_the_same_name_and_ends_with_it(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any, slow_sbatch: Any
) -> None:
    """What Slurm has not got is submitted again; what it takes later ends with the other."""
    folder, environ = slow_sbatch
    with ThreadPoolExecutor(1) as threads:
        late = subprocess.Popen(
            [sys.executable, "-c", QUEUE, str(launch.folder)], env={**os.environ, **environ}
        )
        until((folder / "called").exists)
        late.kill()
        late.wait()
        words = launch, 1, launch.jobs[0], "1_1", hurried(slurm_shell.environ, [])
        assert threads.submit(queue_successor, *words).result() == "3"
    (folder / "go").touch()
    until(lambda: living(fake_slurm).count(f"{launch.id}-1") == 2)
    assert len(load_launch(launch.folder).jobs) == 2
    assert cancel_successor(launch, 1, "1_1", context)
    assert f"{launch.id}-1" not in living(fake_slurm)
    (slurm_shell.cwd / "fixed").touch()


def test_successor_that_is_just_submitted_is_dropped(
    slurm_shell: Any, launch: Launch, fake_slurm: Any, slow_sbatch: Any
) -> None:
    """The end of an attempt waits for the answer of sbatch, and then cancels what it submitted."""
    folder, environ = slow_sbatch
    with ThreadPoolExecutor(2) as threads:
        words = launch, 1, launch.jobs[0], "1_1", hurried(environ, [])
        threads.submit(queue_successor, *words)
        until((folder / "called").exists)
        waits: list[float] = []
        context = hurried(slurm_shell.environ, waits)
        dropped = threads.submit(cancel_successor, launch, 1, "1_1", context)
        until(lambda: sum(waits) > 1 or dropped.done())
        (folder / "go").touch()
        assert dropped.result()
    assert f"{launch.id}-1" not in living(fake_slurm)
    (slurm_shell.cwd / "fixed").touch()


def test_successor_that_was_dropped_runs_nothing_if_it_starts(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """Such as one that Slurm took long after: a run that has failed is not run again by it."""
    assert queue_successor(launch, 1, launch.jobs[0], "1_1", context) == "3"
    assert cancel_successor(launch, 1, "1_1", context)
    fake_slurm.slurm("scancel", "--signal=KILL", "1_1")
    until(lambda: shown(slurm_shell)[1][0] != "running")
    fake_slurm.slurm("sbatch", str(launch.folder / "job-1.sbatch"))
    until(lambda: f"{launch.id}-1" not in living(fake_slurm))
    assert read_run_records(launch, [1])[0].attempt == 1
    assert "does not continue in this job" in (launch.folder / "logs" / "job-1-4.log").read_text()
    (slurm_shell.cwd / "fixed").touch()


def test_cancel_ends_what_slurm_has_under_the_names_of_a_launch(
    slurm_shell: Any, launch: Launch, context: Context, fake_slurm: Any
) -> None:
    """Also a job that the record knows nothing of, and of one run only what is that run's."""
    queue_successor(launch, 0, launch.jobs[0], "1_0", context)
    queue_successor(launch, 1, launch.jobs[0], "1_1", context)
    fake_slurm.slurm("sbatch", "--hold", str(launch.folder / "job-1.sbatch"))
    fake_slurm.slurm("sbatch", "--hold", str(launch.folder / "job-2.sbatch"))
    assert slurm_shell("cancel", f"{launch.id}.1").code == 0
    until(lambda: shown(slurm_shell)[1][0] == "cancelled")
    until(lambda: sorted(living(fake_slurm)) == [launch.id, *[f"{launch.id}-1"] * 2])
    assert slurm_shell("cancel", launch.id).code == 0
    until(lambda: not living(fake_slurm))
