"""What submit, observe and cancel promise when parts of Slurm are missing or away."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerAwayError, SchedulerRefusedError, TemplateError
from hpckit.model.states import RunState
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import find_jobs_by_name, observe_jobs
from hpckit.slurm.submit import submit_job

SHIPPED = Path(__file__).parents[2] / "slurm_templates"
NOW = datetime(2026, 1, 2, tzinfo=UTC)

PlanMaker = Callable[..., Any]


@pytest.fixture
def commands(fake_slurm: Any) -> SlurmCommands:
    """Return the fake's programs."""
    return SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=fake_slurm.environ)


def wait_for_end(job: str, commands: SlurmCommands) -> RunState:
    """Ask until the job is over."""
    while True:
        state = observe_jobs([job], commands, NOW)[job].state
        if state.ended:
            return state.run_state


def test_submit_leaves_nothing_beside_the_script(
    send: Callable[..., str], commands: SlurmCommands, tmp_path: Path
) -> None:
    """Neither submitit's files nor pickles appear in the folder; os.environ is unchanged."""
    before = dict(os.environ)
    job = send(commands)
    assert wait_for_end(job, commands) is RunState.completed
    names = sorted(path.name for path in (tmp_path / "launch").iterdir())
    assert names == ["job-0.sbatch", "launch.json", "logs"]
    assert dict(os.environ) == before


def test_submit_refuses_a_script_that_was_changed(
    send: Callable[..., str], commands: SlurmCommands, tmp_path: Path, plan_of_one_job: PlanMaker
) -> None:
    """What is submitted is what was rendered: an edited file is an error, and nothing is sent."""
    send(commands)
    job = plan_of_one_job(tmp_path).jobs[0]
    with pytest.raises(TemplateError, match="not the text that was rendered"):
        submit_job("#!/bin/bash\n", job, tmp_path / "launch", commands)
    assert len(find_jobs_by_name(job.name, commands)) == 1


def test_submit_tells_a_silent_controller(send: Callable[..., str], fake_slurm: Any) -> None:
    """When sbatch does not answer in time it is ended, and the error warns of an orphan."""
    fake_slurm.fail("hang")
    patience = timedelta(seconds=0.3)
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=fake_slurm.environ, timeout=patience)
    with pytest.raises(SchedulerAwayError, match="sbatch did not answer") as caught:
        send(commands)
    assert "squeue --me" in caught.value.hint


def test_submit_tells_that_the_controller_is_away(
    send: Callable[..., str], commands: SlurmCommands, fake_slurm: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The own words of sbatch are in the error, and nowhere else."""
    fake_slurm.fail("controller-away")
    with pytest.raises(SchedulerAwayError, match="Unable to contact slurm controller"):
        send(commands)
    assert capfd.readouterr() == ("", "")


def test_submission_that_lost_its_answer_is_found_by_name(
    send: Callable[..., str], commands: SlurmCommands, fake_slurm: Any
) -> None:
    """Where sbatch died after Slurm took the job, the job is found by its name."""
    fake_slurm.fail("lose-answer")
    with pytest.raises(SchedulerRefusedError, match="exit code 1 and no output"):
        send(commands, name="lost-1", python="sleep", runs=3)
    (orphan,) = find_jobs_by_name("lost-1", commands)
    cancel_jobs([orphan], commands)
    assert wait_for_end(f"{orphan}_0", commands) is not RunState.running


@pytest.mark.parametrize("stated", ["urgent", None])
def test_script_goes_before_the_users_defaults(
    stated: str | None, send: Callable[..., str], fake_slurm: Any
) -> None:
    """SBATCH_PARTITION counts where the script states no partition, and only there."""
    environ = {**fake_slurm.environ, "SBATCH_PARTITION": "nowhere"}
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=environ)
    if stated is None:
        with pytest.raises(SchedulerRefusedError, match="nowhere"):
            send(commands)
    else:
        assert send(commands, partition=stated).isdecimal()


def test_jobs_that_squeue_forgot_are_asked_of_sacct(
    send: Callable[..., str], commands: SlurmCommands, fake_slurm: Any
) -> None:
    """A job that left the queue keeps its end."""
    job = send(commands, python="false")
    wait_for_end(job, commands)
    fake_slurm.fail("forget")
    found = observe_jobs([job], commands, NOW)[job]
    assert (found.state.run_state, found.exit_code) == (RunState.failed, 1)


@pytest.mark.parametrize("broken", ["controller-away", "database-away", "no squeue", "no sacct"])
def test_one_of_squeue_and_sacct_is_enough(
    broken: str, send: Callable[..., str], fake_slurm: Any, path_without_slurm: str
) -> None:
    """Without squeue, or without sacct, the other still tells; no error is raised."""
    environ = {**fake_slurm.environ, "PATH": path_without_slurm}
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=environ)
    job = send(commands)
    wait_for_end(job, commands)
    if broken.startswith("no "):
        fake_slurm.remove(broken.removeprefix("no "))
        commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=environ)
    else:
        fake_slurm.fail(broken)
    assert observe_jobs([job], commands, NOW)[job].state.run_state is RunState.completed
    assert find_jobs_by_name("digits-20260102-030405-ab12", commands) == (job,)


def test_silence_of_both_is_an_error(commands: SlurmCommands, fake_slurm: Any) -> None:
    """Only where neither squeue nor sacct answers, nothing is known; both are quoted."""
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    with pytest.raises(SchedulerAwayError, match=r"slurm controller.*database"):
        observe_jobs(["7"], commands, NOW)
    with pytest.raises(SchedulerAwayError, match="neither squeue nor sacct"):
        find_jobs_by_name("any", commands)


def test_nothing_is_asked_about_no_jobs(fake_slurm: Any) -> None:
    """Without jobs there is no question, so Slurm may be away."""
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ={"PATH": ""})
    assert observe_jobs([], commands, NOW) == {}


@pytest.mark.parametrize("count", [3, 1000])
def test_slurm_is_asked_twice_at_most_for_any_number_of_jobs(count: int, tmp_path: Path) -> None:
    """However many jobs: one squeue and one sacct, with arguments that fit a command line."""
    asked = tmp_path / "asked"
    for name in ("squeue", "sacct"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} ${{#*}} $*" >> {asked}\n')
        program.chmod(0o755)
    commands = SlurmCommands(bin_dir=str(tmp_path), environ={"PATH": "/bin"})
    jobs = [f"{main}_{index}" for main in range(100000, 100000 + count) for index in range(3)]
    assert observe_jobs(jobs, commands, NOW) == {}
    assert [line.split()[0] for line in asked.read_text().splitlines()] == ["squeue", "sacct"]
    assert max(map(len, asked.read_text().splitlines())) < 8000


def test_cancel_names_the_elements_of_an_array_together(tmp_path: Path) -> None:
    """A thousand elements are a few words for scancel, not a thousand."""
    asked = tmp_path / "asked"
    program = tmp_path / "scancel"
    program.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    program.chmod(0o755)
    jobs = ["9", *(f"7_{index}" for index in range(1000) if index != 5), "8_3"]
    cancel_jobs(jobs, SlurmCommands(bin_dir=str(tmp_path), environ={"PATH": "/bin"}))
    assert asked.read_text() == "9 7_[0-4,6-999] 8_[3]\n"


@pytest.mark.parametrize(
    ("complaint", "refused"),
    [
        ("Kill job error on job id 7: Invalid job id specified", False),
        ("Kill job error on job id 7: Job/step already completing or completed", False),
        ("Kill job error on job id 7: Access/permission denied", True),
    ],
)
def test_cancel_minds_a_refusal_but_not_an_end(
    complaint: str,
    refused: bool,  # noqa: FBT001  # a parameter of the case
    tmp_path: Path,
) -> None:
    """A job that is over needs no cancelling; one that may not be cancelled is an error."""
    program = tmp_path / "scancel"
    program.write_text(f"#!/bin/sh\necho 'scancel: error: {complaint}' >&2\nexit 1\n")
    program.chmod(0o755)
    commands = SlurmCommands(bin_dir=str(tmp_path), environ={"PATH": "/bin"})
    with pytest.raises(SchedulerRefusedError) if refused else contextlib.nullcontext():
        cancel_jobs(["7"], commands)
