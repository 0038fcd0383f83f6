"""Promises of `hpckit resume` and `hpckit watch`, with real runs here and on a fake Slurm."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.errors import HeldError
from hpckit.model import events
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import load_launch, read_run_records
from hpckit.record.lock import hold_lock, is_lock_held
from hpckit.record.process import is_process_alive

pytestmark = pytest.mark.slow

UNLESS_FIXED = "command=[sh,-c,'test -e $HPCKIT_PROJECT/fixed || test ${params.i} = 0']"
QUICK = ("experiment=command", "code.snapshot=false")
LOCAL = (*QUICK, "cluster=local")
SLURM = (*QUICK, "cluster=slurm")


def sweep(shell: Any, *words: str, points: str = "0,1,2") -> Path:
    """Run a sweep of which all but point 0 fail until `fixed` exists; return its folder."""
    said = shell("launch", "--wait", "-m", UNLESS_FIXED, f"+params.i={points}", *words)
    assert said.code == 1, said.err
    return Path(shell.outputs[-1])


def fix(shell: Any) -> None:
    """Let the next attempts succeed."""
    (shell.cwd / "fixed").touch()


def states(shell: Any) -> list[str]:
    """Return the states of the latest launch's runs."""
    return [run["state"] for run in json.loads(shell("status", "--json").out)["runs"]]


def attempts(folder: Path) -> list[int]:
    """Return how many attempts each run has had."""
    return [len(list((run / "attempts").glob("*"))) for run in sorted((folder / "runs").iterdir())]


def test_resume_runs_only_what_failed_and_completes_it(shell: Any) -> None:
    """On this machine: the completed run is skipped, the failed ones get their second attempt."""
    folder = sweep(shell, *LOCAL)
    fix(shell)
    said = shell("resume", "--wait")
    assert said.code == 0, said.err
    assert "2 of 3 runs" in said.out
    assert states(shell) == ["completed"] * 3
    assert attempts(folder) == [1, 2, 2]


@thorough
def test_resume_makes_one_compact_array_on_slurm(slurm_shell: Any) -> None:
    """Runs 1 and 2 of three become elements 0 and 1 of a new job, in the same launch."""
    folder = sweep(slurm_shell, *SLURM)
    fix(slurm_shell)
    said = json.loads(slurm_shell("resume", "--json", "--wait").out)
    (job,) = said["jobs"]
    assert [(run["index"], run["job"]) for run in said["runs"]] == [(1, f"{job}_0"), (2, f"{job}_1")]
    assert [(one["index"], one["state"]) for one in said["skipped"]] == [(0, "completed")]
    assert states(slurm_shell) == ["completed"] * 3
    assert attempts(folder) == [1, 2, 2]
    added = [event for event in slurm_shell.events(folder) if isinstance(event, events.JobAdded)]
    assert [(one.job.index, one.job.runs, one.after) for one in added] == [(1, (1, 2), (1, 1))]
    adopted = [event for event in slurm_shell.events(folder) if getattr(event, "adopted", False)]
    assert adopted == []


@thorough
def test_resume_keeps_jobs_apart_that_ask_for_different_things(slurm_shell: Any) -> None:
    """Equal resources share an array, others have their own, by what was frozen."""
    words = ("-m", "experiment=command", "command=false", "resources.mem_gb=1,2,1")
    assert slurm_shell("launch", "--wait", *words, "cluster=slurm", "code.snapshot=false").code == 1
    shown = json.loads(slurm_shell("resume", "--dry-run", "--json").out)
    assert [Path(one["path"]).name for one in shown["scripts"]] == ["job-2.sbatch", "job-3.sbatch"]
    assert ["--mem=1G" in one["text"] for one in shown["scripts"]] == [True, False]
    assert ["--array=0-1%" in one["text"] for one in shown["scripts"]] == [True, False]


@thorough
def test_resume_dry_run_prints_what_resume_submits_and_changes_nothing(slurm_shell: Any) -> None:
    """The text shown is the text submitted afterwards; until then no file is made or changed."""
    folder = sweep(slurm_shell, *SLURM)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    shown = slurm_shell("resume", "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    fix(slurm_shell)
    assert slurm_shell("resume", "--wait").code == 0
    said, _, script = shown.out.partition("--- job-1.sbatch\n")
    assert script == (folder / "job-1.sbatch").read_text()
    assert "resume  1-2: failed (exit_code)" in said
    assert "left    0: completed" in said


@thorough
def test_resume_shows_resumed_runs_as_waiting(slurm_shell: Any) -> None:
    """Between submission and start a run is pending, under its new job; a resume leaves it."""
    script = "[ -e $HPCKIT_PROJECT/again ] && until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done"
    words = ("-m", *SLURM, f"command=[sh,-c,'{script}']", "seed=1,2")
    assert slurm_shell("launch", "--wait", *words, "resources.array_parallelism=1").code == 1
    (slurm_shell.cwd / "again").touch()
    (job,) = json.loads(slurm_shell("resume", "--json").out)["jobs"]
    shown = json.loads(slurm_shell("status", "--json").out)["runs"][1]
    assert (shown["state"], shown["job"], shown["attempt"]) == ("pending", f"{job}_1", 1)
    again = slurm_shell("resume")
    assert again.code == 0
    assert "nothing to resume" in again.out
    assert "waits already" in again.out
    fix(slurm_shell)
    until(lambda: states(slurm_shell) == ["completed"] * 2)


def test_resume_with_nothing_to_do_says_so(shell: Any) -> None:
    """A completed launch is left as it is, exit code 0."""
    assert shell("launch", "--wait", *LOCAL, "command=true").code == 0
    said = shell("resume")
    assert said.code == 0
    assert "nothing to resume" in said.out
    document = json.loads(shell("resume", "--json").out)
    assert (document["runs"], document["jobs"]) == ([], [])
    assert [one["reason"] for one in document["skipped"]] == ["completed"]


@pytest.mark.parametrize("cluster", ["local", pytest.param("slurm", marks=thorough)])
def test_resume_takes_cancelled_runs_only_when_told(slurm_shell: Any, cluster: str) -> None:
    """A cancelled run is left alone, resumed when named, and then not stopped by the old wish."""
    command = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.05; done']"
    words = (*QUICK, f"cluster={cluster}", command)
    assert slurm_shell("launch", *words).code == 0
    launch = load_launch(slurm_shell.outputs[0])
    until(lambda: read_run_records(launch)[0].round is not None)
    assert slurm_shell("cancel").code == 0
    until(lambda: read_run_records(launch)[0].state.ended)
    assert "it was cancelled" in slurm_shell("resume").out
    fix(slurm_shell)
    # A launch of one run names it, too.
    named = launch.id if cluster == "local" else f"{launch.id}.0"
    said = slurm_shell("resume", named, "--wait")
    assert said.code == 0, said.out + said.err
    assert states(slurm_shell) == ["completed"]


@thorough
def test_resume_starts_cancelled_local_runs_once_only(shell: Any) -> None:
    """A run cancelled while it waited, then resumed, goes to the new executor and to no other."""
    command = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.05; done']"
    assert shell("launch", "-m", *LOCAL, command, "seed=1,2").code == 0
    launch = load_launch(shell.outputs[0])
    assert shell("cancel", f"{launch.id}.1").code == 0
    until(lambda: read_run_records(launch)[0].round is not None)
    assert shell("resume", f"{launch.id}.1").code == 0
    until(lambda: read_run_records(launch)[1].round is not None)
    assert states(shell) == ["running", "running"]
    fix(shell)
    executors = [event for event in shell.events(launch.folder) if isinstance(event, events.LocalStarted)]
    until(
        lambda: (
            not any(is_process_alive(executor.host, executor.pid, executor.started) for executor in executors)
        )
    )
    assert states(shell) == ["completed", "completed"]
    assert attempts(launch.folder) == [1, 1]


def test_resume_submits_what_was_only_rendered(slurm_shell: Any) -> None:
    """A run nobody was ever given is missing, and is submitted."""
    assert slurm_shell("render", *SLURM, "command=true").code == 0
    assert slurm_shell("resume", "--wait").code == 0
    assert states(slurm_shell) == ["completed"]


@thorough
def test_resume_refused_leaves_the_launch_and_can_be_repeated(slurm_shell: Any, fake_slurm: Any) -> None:
    """A scheduler that is away is exit code 3; nothing is lost, and later it works."""
    folder = sweep(slurm_shell, *SLURM, points="1")
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    said = slurm_shell("resume")
    assert said.code == 3
    assert "is unknown" in said.err
    fake_slurm.mend("controller-away")
    fake_slurm.mend("database-away")
    assert not (folder / "job-1.sbatch").exists()
    fix(slurm_shell)
    assert slurm_shell("resume", "--wait").code == 0


@thorough
def test_resume_leaves_a_submission_of_unknown_fate_to_doctor(slurm_shell: Any) -> None:
    """Where sbatch did not answer, a second submission might double the run: it is refused."""
    sweep(slurm_shell, *SLURM, points="1")
    launch = load_launch(slurm_shell.outputs[0])
    job = launch.jobs[0]
    added = events.JobAdded(at=launch.created_at, job=replace(job, index=1, name="x-1"), after=(1,))
    intent = events.SubmitIntended(at=launch.created_at, job_index=1, job_name="x-1")
    for event in (added, intent):
        record_launch_event(launch.paths, event)
    said = slurm_shell("resume")
    assert said.code == 0
    assert "hpckit doctor" in said.out
    assert slurm_shell("doctor", "--adopt").code == 0
    fix(slurm_shell)
    assert slurm_shell("resume", "--wait").code == 0


@pytest.mark.parametrize("change", ["edited", pytest.param("gone", marks=thorough)])
def test_resume_refuses_when_the_snapshot_has_changed(shell: Any, change: str) -> None:
    """An edited or missing file of the frozen code is named; --changed-code goes on."""
    script = shell.cwd / "job.py"
    script.write_text("raise SystemExit(1)\n")
    words = ("experiment=command", "command=python job.py", "cluster=local")
    assert shell("launch", "--wait", *words).code == 1
    frozen = shell.outputs[0] / "code" / "job.py"
    if change == "gone":
        frozen.unlink()
    else:
        frozen.write_text("raise SystemExit(0)\n")
    (frozen.parent / "written-by-the-run.txt").touch()
    said = shell("resume")
    assert said.code == 2
    assert f"code/job.py {'is gone' if change == 'gone' else 'was edited'}" in said.err
    assert "written-by-the-run" not in said.err
    assert shell("resume", "--changed-code", "--wait").code == int(change == "gone")


@thorough
def test_resume_says_that_what_was_mended_since_does_not_run(shell: Any) -> None:
    """Who mends a bug and resumes is told that the frozen code runs, and how to run the new."""
    script = shell.cwd / "job.py"
    script.write_text("raise SystemExit(1)\n")
    words = ("experiment=command", "command=python job.py", "cluster=local")
    assert shell("launch", "--wait", *words).code == 1
    said = shell("resume", "--wait")
    assert "changed in the project" not in said.err
    script.write_text("raise SystemExit(0)\n")
    said = shell("resume", "--wait", "--json")
    assert said.code == 1
    assert "job.py changed in the project since the launch" in said.err
    run = json.loads(said.out)["runs"][0]["run"]
    assert f"hpckit rerun {run}" in said.err
    assert shell("rerun", run, "--wait").code == 0


def test_resume_refuses_when_a_configuration_was_edited(shell: Any) -> None:
    """A run's frozen configuration is what it was submitted with, or it is not resumed."""
    folder = sweep(shell, *LOCAL, points="1")
    config = folder / "configs" / "00000.jsonl"
    config.write_text(config.read_text().replace('"seed": 0', '"seed": 7'))
    said = shell("resume")
    assert said.code == 2
    assert "the configuration of run 0 was edited" in said.err


def test_resume_refuses_when_the_checkout_has_moved_on(shell: Any) -> None:
    """Without a snapshot it is the commit and what git tracks that must be as they were."""
    git = ["git", "-c", "user.name=u", "-c", "user.email=u@example.org"]
    (shell.cwd / "job.py").write_text("raise SystemExit(1)\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], cwd=shell.cwd, check=True)
    assert shell("launch", "--wait", *LOCAL, "command=python job.py").code == 1
    shown = shell("resume", "--dry-run")
    assert shown.code == 0, shown.err
    (shell.cwd / "job.py").write_text("raise SystemExit(0)\n")
    assert "different changes since commit" in shell("resume").err
    subprocess.run([*git, "commit", "-qam", "next"], cwd=shell.cwd, check=True)
    said = shell("resume")
    assert said.code == 2
    assert "is at commit" in said.err


def test_resume_renders_with_the_launch_s_own_template(slurm_shell: Any) -> None:
    """The template comes from the snapshot; one that changed, or is gone, is said."""
    templates = slurm_shell.cwd / "slurm_templates"
    templates.mkdir()
    (slurm_shell.cwd / "conf").mkdir()
    (slurm_shell.cwd / "conf" / "mine.yaml").write_text("a: 1\n")
    own = '{% extends "hpckit/job.sbatch.j2" %}{% block modules %}# ours\n{% endblock %}\n'
    (templates / "own.j2").write_text(own)
    words = ("experiment=command", "command=false", "cluster=slurm", "cluster.template=own.j2")
    assert slurm_shell("launch", "--wait", *words).code == 1
    (templates / "own.j2").unlink()
    assert "# ours\n" in slurm_shell("resume", "--dry-run").out
    frozen = slurm_shell.outputs[0] / "code" / "slurm_templates" / "own.j2"
    frozen.write_text(own.replace("# ours", "# theirs"))
    said = slurm_shell("resume", "--dry-run")
    assert said.code == 2
    assert "'# ours' and is '# theirs'" in said.err
    frozen.unlink()
    said = slurm_shell("resume", "--dry-run", "--changed-code")
    assert said.code == 2
    assert "no template 'own.j2'" in said.err


def test_resume_is_refused_while_another_is_at_it(shell: Any) -> None:
    """The second of two resumes says who is at it, with exit code 2, and does nothing."""
    folder = sweep(shell, *LOCAL, points="1")
    launch = load_launch(folder)
    with hold_lock(launch.paths.resume_lock, at=launch.created_at, what="is resuming it"):
        said = shell("resume")
    assert said.code == HeldError.exit_code == 2
    assert f"is resuming {launch.id} since" in said.err
    fix(shell)
    assert shell("resume", "--wait").code == 0
    assert not is_lock_held(launch.paths.resume_lock)
