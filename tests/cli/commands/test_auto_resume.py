"""Promises of `hpckit launch --auto-resume` and of the job it queues, on a fake Slurm."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import until

from hpckit.errors import SchedulerRefusedError
from hpckit.model import events
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import load_launch, read_launch_history, read_run_records
from hpckit.record.lock import hold_lock

pytestmark = pytest.mark.slow

QUICK = ("experiment=command", "code.snapshot=false", "cluster=slurm")


def auto_resume_jobs(shell: Any) -> list[events.JobAdded]:
    """Return the auto-resume jobs that were added to the launch."""
    added = [event for event in shell.events(shell.outputs[0]) if isinstance(event, events.JobAdded)]
    return [one for one in added if not one.job.runs]


def living(fake_slurm: Any) -> list[str]:
    """Return the names of the jobs that wait or run."""
    text: str = fake_slurm.slurm("squeue", "--noheader", "--Format=Name:0|")
    return [line.rstrip("|") for line in text.splitlines()]


def log_of_auto_resume(shell: Any, index: int) -> str:
    """Return what an auto-resume job has printed."""
    (log,) = (shell.outputs[0] / "logs").glob(f"job-{index}-*.log")
    return Path(log).read_text()


def attempts(shell: Any) -> list[int]:
    """Return how many attempts each run has had."""
    runs = sorted((shell.outputs[0] / "runs").iterdir())
    return [len(list((run / "attempts").glob("*"))) for run in runs]


@thorough
def test_auto_resume_brings_a_launch_to_its_end(
    slurm_shell: Any, fake_slurm: Any, lose_supervisor: Any
) -> None:
    """Nobody is logged in: auto-resume jobs resume what lost its supervisor, until all is done."""
    words = ("-m", *QUICK, lose_supervisor(), "+params.i=1,3")
    said = slurm_shell("launch", "--auto-resume", *words)
    assert said.code == 0, said.err
    assert "auto-resume job" in said.out
    until(lambda: not living(fake_slurm))
    assert [record.state for record in read_run_records(load_launch(slurm_shell.outputs[0]))] == [
        "completed",
        "completed",
    ]
    assert attempts(slurm_shell) == [1, 3]
    assert len(auto_resume_jobs(slurm_shell)) == 3
    assert "no run continues" in log_of_auto_resume(slurm_shell, auto_resume_jobs(slurm_shell)[-1].job.index)
    added = [event for event in slurm_shell.events(slurm_shell.outputs[0]) if event.kind == "job_added"]
    assert not any(one.fresh for one in added)


@thorough
def test_auto_resume_is_bounded_by_the_budget(
    slurm_shell: Any, fake_slurm: Any, lose_supervisor: Any
) -> None:
    """A run that never gets further is left after its third end, and the log says why."""
    slurm_shell("launch", "--auto-resume", *QUICK, lose_supervisor(), "+params.i=9")
    until(lambda: not living(fake_slurm))
    assert attempts(slurm_shell) == [3]
    log = log_of_auto_resume(slurm_shell, auto_resume_jobs(slurm_shell)[-1].job.index)
    assert "the same failure 3 times without getting further" in log


def test_auto_resume_job_waits_for_what_it_resumed(slurm_shell: Any, fake_slurm: Any) -> None:
    """Each auto-resume job stands behind the jobs that go on, and there is one at a time."""
    command = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done']"
    said = json.loads(slurm_shell("launch", "--auto-resume", "--json", *QUICK, command).out)
    (first,) = auto_resume_jobs(slurm_shell)
    assert first.job.resources.dependency == f"afterany:{said['jobs'][0]}"
    assert said["auto_resume_job"] != said["jobs"][0]
    name = first.job.name
    assert sorted(living(fake_slurm)) == sorted([said["launch"], name])
    assert json.loads(slurm_shell("status", "--json").out)["auto_resume_job"] == said["auto_resume_job"]
    assert f"auto-resume job {said['auto_resume_job']} resumes" in slurm_shell("status").out
    again = slurm_shell("auto-resume", str(slurm_shell.outputs[0]), "--job", "7")
    assert again.code == 0, again.err
    assert len(auto_resume_jobs(slurm_shell)) == 1
    (slurm_shell.cwd / "fixed").touch()


def test_auto_resume_job_queues_itself_again_behind_a_run_that_slurm_has_requeued(
    slurm_shell: Any, fake_slurm: Any
) -> None:
    """Where it finds nothing to do and a run goes on, the next one waits for that, and a while."""
    command = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done']"
    launched = json.loads(slurm_shell("launch", "--auto-resume", "--json", *QUICK, command).out)
    (first,) = auto_resume_jobs(slurm_shell)
    fake_slurm.slurm("scancel", launched["auto_resume_job"])
    said = slurm_shell("auto-resume", str(slurm_shell.outputs[0]), "--job", str(first.job.index))
    assert said.code == 0, said.err
    _, second = auto_resume_jobs(slurm_shell)
    assert second.job.resources.dependency == f"afterany:{launched['jobs'][0]}"
    script = (slurm_shell.outputs[0] / f"job-{second.job.index}.sbatch").read_text()
    assert "#SBATCH --begin=now+60\n" in script
    (slurm_shell.cwd / "fixed").touch()


@thorough
def test_auto_resume_job_is_cancelled_with_its_launch(slurm_shell: Any, fake_slurm: Any) -> None:
    """`cancel LAUNCH` leaves nobody who would start the runs again; `cancel RUN` leaves it."""
    command = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.1; done']"
    words = ("-m", *QUICK, command, "seed=1,2")
    launched = json.loads(slurm_shell("launch", "--auto-resume", "--json", *words).out)
    (auto_resume,) = auto_resume_jobs(slurm_shell)
    slurm_shell("cancel", f"{launched['launch']}.0")
    assert auto_resume.job.name in living(fake_slurm)
    slurm_shell("cancel")
    assert auto_resume.job.name not in living(fake_slurm)


@thorough
def test_auto_resume_job_waits_for_slurm(slurm_shell: Any, fake_slurm: Any, lose_supervisor: Any) -> None:
    """Away for a while: it goes on when Slurm answers, and resumes what there is to resume."""
    slurm_shell("launch", "--wait", *QUICK, lose_supervisor(), "+params.i=2")
    folder = slurm_shell.outputs[0]
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        for mode in ("controller-away", "database-away"):
            if (fake_slurm.folder / "modes" / mode).exists():
                fake_slurm.mend(mode)

    slurm_shell.sleep = sleep
    said = slurm_shell("auto-resume", str(folder), "--job", "0")
    assert said.code == 0, said.err
    assert slept
    assert "the auto-resume job tries again" in said.err
    until(lambda: not living(fake_slurm))
    assert attempts(slurm_shell) == [2]


@thorough
def test_auto_resume_job_settles_a_submission_without_an_answer(
    slurm_shell: Any, fake_slurm: Any, lose_supervisor: Any
) -> None:
    """What was intended and never confirmed is looked for by name before anything is resumed."""
    slurm_shell("launch", "--wait", *QUICK, lose_supervisor(), "+params.i=2")
    launch = load_launch(slurm_shell.outputs[0])
    slurm_shell("resume", "--dry-run")
    long_ago = datetime(2025, 1, 1, tzinfo=UTC)
    job = launch.jobs[0]
    intent = events.SubmitIntended(at=long_ago, job_index=0, job_name=job.name)
    record_launch_event(launch.paths, intent)
    said = slurm_shell("auto-resume", str(launch.folder), "--job", "9")
    assert said.code == 0, said.err
    adopted = [event for event in slurm_shell.events(launch.folder) if getattr(event, "adopted", False)]
    assert [one.job_index for one in adopted] == [0]
    until(lambda: not living(fake_slurm))
    assert attempts(slurm_shell) == [2]


def test_auto_resume_job_gives_way_to_somebody_who_resumes(slurm_shell: Any) -> None:
    """The lock is waited for, and in the end its holder is named."""
    slurm_shell("launch", "--wait", *QUICK, "command=true")
    launch = load_launch(slurm_shell.outputs[0])
    slurm_shell.faster = 2000
    with hold_lock(launch.paths.resume_lock, at=launch.created_at, what="is at it"):
        said = slurm_shell("auto-resume", str(launch.folder), "--job", "9")
    assert said.code == 2
    assert "is resuming" in said.err


@thorough
def test_resume_by_hand_gives_the_launch_its_auto_resume_job_again(slurm_shell: Any, fake_slurm: Any) -> None:
    """After the last auto-resume job has left, a resume brings one back, where there was one."""
    command = "command=[sh,-c,'test -e $HPCKIT_PROJECT/fixed']"
    slurm_shell("launch", "--auto-resume", *QUICK, command)
    until(lambda: not living(fake_slurm))
    assert len(auto_resume_jobs(slurm_shell)) == 1
    (slurm_shell.cwd / "fixed").touch()
    assert slurm_shell("resume").code == 0
    assert len(auto_resume_jobs(slurm_shell)) == 2
    until(lambda: not living(fake_slurm))
    assert read_run_records(load_launch(slurm_shell.outputs[0]))[0].state == "completed"


def test_auto_resume_dry_run_shows_the_auto_resume_job_and_leaves_nothing(slurm_shell: Any) -> None:
    """The last script is the auto-resume job's, as it will be but for the ids that Slurm gives."""
    words = (*QUICK, "command=true", "cluster.partition=batch", "+cluster.env.A=b")
    shown = slurm_shell("launch", "--auto-resume", "--dry-run", "--json", *words)
    assert shown.code == 0, shown.err
    job, auto_resume = json.loads(shown.out)["scripts"]
    assert "hpckit auto-resume" in auto_resume["text"]
    assert "hpckit auto-resume" not in job["text"]
    assert "#SBATCH --dependency=afterany:JOB0\n" in auto_resume["text"]
    assert "#SBATCH --partition=batch\n" in auto_resume["text"]
    assert "export A=b\n" in auto_resume["text"]
    assert slurm_shell.outputs == []
    said = json.loads(slurm_shell("launch", "--auto-resume", "--json", *words).out)
    written = (slurm_shell.outputs[0] / "job-1.sbatch").read_text()
    mine = auto_resume["text"].replace("JOB0", said["jobs"][0])
    lines = zip(mine.splitlines(), written.splitlines(), strict=True)
    shown_id = json.loads(shown.out)["launch"]
    assert [pair for pair in lines if pair[0].replace(shown_id, said["launch"]) != pair[1]] == []


def test_auto_resume_is_refused_on_this_machine(shell: Any) -> None:
    """There is no queue to put an auto-resume job in: `hpckit watch` is named instead."""
    said = shell("launch", "--auto-resume", "experiment=command", "command=true", "cluster=local")
    assert said.code == 2
    assert "hpckit watch" in said.err
    assert shell.outputs == []


def test_auto_resume_and_wait_are_refused_together(slurm_shell: Any) -> None:
    """Who waits for the runs' first end is not who wants them resumed."""
    said = slurm_shell("launch", "--auto-resume", "--wait", *QUICK, "command=true")
    assert said.code == 2
    assert slurm_shell.outputs == []


def test_detach_is_the_default_by_name(slurm_shell: Any) -> None:
    """It returns while the run waits to be told to end; with --wait it is refused."""
    gate = slurm_shell.cwd / "gate"
    command = f"command=[sh,-c,'until [ -e {gate} ]; do sleep 0.1; done']"
    assert slurm_shell("launch", "--detach", "--wait", *QUICK, command).code == 2
    assert slurm_shell.outputs == []
    assert slurm_shell("launch", "--detach", *QUICK, command).code == 0
    (record,) = read_run_records(load_launch(slurm_shell.outputs[0]))
    assert record.state != "completed"
    gate.touch()
    until(lambda: read_run_records(load_launch(slurm_shell.outputs[0]))[0].state == "completed")


def test_auto_resume_says_when_the_auto_resume_job_is_refused(slurm_shell: Any, fake_slurm: Any) -> None:
    """The runs are under way, and that nothing will resume them is an error with its way out."""
    program = fake_slurm.bin_dir / "sbatch"
    real = fake_slurm.bin_dir / "real" / "sbatch"
    real.parent.mkdir()
    program.rename(real)
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *job-1.sbatch*) echo "sbatch: error: no such jobs" >&2; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    said = slurm_shell("launch", "--auto-resume", *QUICK, "command=true")
    assert said.code == 3
    assert "is under way" in said.err
    assert "no such jobs" in said.err
    assert "hpckit watch" in said.err
    history = read_launch_history(load_launch(slurm_shell.outputs[0]))
    assert history.auto_resume_job is None
    until(lambda: read_run_records(load_launch(slurm_shell.outputs[0]))[0].state == "completed")


def test_auto_resume_wants_a_template_with_a_block_for_it(slurm_shell: Any) -> None:
    """A template that has no `run` block would start the runs once more: it is refused, early."""
    template = slurm_shell.cwd / "plain.j2"
    template.write_text("#!/bin/sh\nhpckit supervise\n")
    words = (*QUICK, "command=true", f"cluster.template={template}")
    said = slurm_shell("launch", "--auto-resume", *words)
    assert said.code == 2
    assert "plain.j2 has no block run" in said.err
    assert slurm_shell.outputs == []


def test_auto_resume_job_leaves_a_submission_that_is_under_way(slurm_shell: Any) -> None:
    """An intent of a moment ago is somebody's who is at it: it is waited for, not settled."""
    slurm_shell("launch", "--wait", *QUICK, "command=true")
    launch = load_launch(slurm_shell.outputs[0])
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=9)
    intent = events.SubmitIntended(at=at, job_index=0, job_name=launch.jobs[0].name)
    record_launch_event(launch.paths, intent)
    said = slurm_shell("auto-resume", str(launch.folder), "--job", "9")
    assert said.code == 0, said.err
    assert "is being submitted" in said.err


def test_auto_resume_is_refused_before_anything_starts_where_its_job_would_be(
    slurm_shell: Any, fake_slurm: Any
) -> None:
    """A partition for GPU jobs only refuses it: that is said first, with the way out."""
    fake_slurm.fail("only-gpu-jobs")
    gpus = ("cluster.gpus_per_node=1", "resources.gpus_per_node=1")
    words = ("launch", "--auto-resume", *QUICK, "command=true", *gpus)
    said = slurm_shell(*words)
    assert said.code == SchedulerRefusedError.exit_code
    assert "at least one GPU" in said.err
    assert "cluster.service_partition=NAME" in " ".join(said.err.split())
    assert slurm_shell.outputs == []
    assert slurm_shell(*words, "cluster.service_partition=urgent").code == 0
    until(lambda: not living(fake_slurm))
