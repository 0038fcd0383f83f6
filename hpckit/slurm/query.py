"""What Slurm knows of jobs, in as few questions as possible: squeue once, then sacct once.

Responsible for asking and for putting both answers together; it must not decide what an answer
means for a run. Never one question per job: slurmctld serves the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from hpckit.errors import SchedulerAwayError, SchedulerError, SchedulerRefusedError
from hpckit.model.run import Observation
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.listing import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    job_ids,
    read_sacct,
    read_squeue,
)

_LISTED = 200
"""Above this many jobs (arrays count as one), squeue is asked for all of the user's."""

_NAMED_SINCE = "now-30days"
"""How far back sacct looks for a name: without a job id, its default is midnight."""


def observe(jobs: Sequence[str], commands: SlurmCommands, now: datetime) -> dict[str, Observation]:
    """Return what Slurm says of these jobs (`123` or `123_4`), by id.

    A job that Slurm has forgotten is left out. Raises SchedulerAwayError only where neither
    squeue nor sacct answers.
    """
    if not jobs:
        return {}
    found: dict[str, Observation] = {}
    errors: list[SchedulerError] = []
    for ask in (_squeue, _sacct):
        unknown = [job for job in jobs if job not in found]
        if unknown:
            try:
                answers = {answer.job: answer for answer in ask(unknown, commands, now)}
            except SchedulerError as error:
                errors.append(error)
            else:
                found.update((job, answers[job]) for job in unknown if job in answers)
    if len(errors) == 2:  # noqa: PLR2004  # both of the two
        raise SchedulerAwayError(
            f"neither squeue nor sacct answers: {errors[0].message}; {errors[1].message}",
            hint=errors[0].hint,
        )
    return found


def find_by_name(name: str, commands: SlurmCommands) -> tuple[str, ...]:
    """Return the main ids of the user's jobs with this name, oldest first.

    Raises SchedulerAwayError where neither squeue nor sacct answers: then it is not known.
    """
    found: set[str] = set()
    errors: list[SchedulerError] = []
    for ask in (_squeue_by_name, _sacct_by_name):
        try:
            lines = ask(name, commands).splitlines()
        except SchedulerError as error:
            errors.append(error)
        else:
            found.update(_main(one) for line in lines for one in job_ids(line.strip(" |")))
    if len(errors) == 2:  # noqa: PLR2004  # both of the two
        raise SchedulerAwayError(
            f"neither squeue nor sacct answers: {errors[0].message}; {errors[1].message}",
            hint=errors[0].hint,
        )
    return tuple(sorted(found, key=int))


def _squeue(jobs: Iterable[str], commands: SlurmCommands, now: datetime) -> Iterable[Observation]:
    ids = _mains(jobs)
    which = ("--me",) if len(ids) > _LISTED else (f"--jobs={','.join(ids)}",)
    try:
        text = commands.run(
            "squeue", *which, "--array", "--states=all", "--noheader", f"--Format={SQUEUE_FORMAT}"
        )
    except SchedulerRefusedError as error:
        # A single id that squeue no longer knows is an error; one among several is not.
        if "invalid job id" in error.message.lower():
            return ()
        raise
    return read_squeue(text, now)


def _sacct(jobs: Iterable[str], commands: SlurmCommands, now: datetime) -> Iterable[Observation]:
    text = commands.run(
        "sacct",
        f"--jobs={','.join(_mains(jobs))}",
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--format={SACCT_FORMAT}",
    )
    return read_sacct(text, now)


def _squeue_by_name(name: str, commands: SlurmCommands) -> str:
    return commands.run(
        "squeue", "--me", f"--name={name}", "--states=all", "--noheader", "--Format=JobArrayID:0|"
    )


def _sacct_by_name(name: str, commands: SlurmCommands) -> str:
    return commands.run(
        "sacct",
        f"--name={name}",
        f"--starttime={_NAMED_SINCE}",
        "--allocations",
        "--noheader",
        "--parsable2",
        "--format=JobID",
    )


def _mains(jobs: Iterable[str]) -> list[str]:
    return sorted({_main(job) for job in jobs}, key=lambda job: (len(job), job))


def _main(job: str) -> str:
    return job.partition("_")[0]
