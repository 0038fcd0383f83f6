"""Cancels jobs, many in one call; does not record it or wait for their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hpckit.errors import SchedulerRefusedError
from hpckit.model.counted import format_ranges
from hpckit.model.ids import JobId
from hpckit.slurm.cached_query import invalidate_cached_answers
from hpckit.slurm.commands import SlurmCommands

_AT_ONCE = 500
_OVER = ("invalid job id", "already completing or completed")


def cancel_jobs(jobs: Sequence[str], commands: SlurmCommands) -> None:
    """Cancel these jobs (`123` or `123_4`); a job that has already ended is no error.

    Raises SchedulerRefusedError or SchedulerAwayError.
    """
    words = list(_group_array_elements(jobs))
    try:
        _run_scancel_in_batches(words, commands)
    finally:
        invalidate_cached_answers(commands)


def _run_scancel_in_batches(words: Sequence[str], commands: SlurmCommands) -> None:
    for start in range(0, len(words), _AT_ONCE):
        # Not --quiet: with it, 22.05 hides that permission was denied and exits 0.
        try:
            commands.run("scancel", *words[start : start + _AT_ONCE])
        except SchedulerRefusedError as error:
            complaints = error.message.lower().split("; ")
            if not all(any(mark in complaint for mark in _OVER) for complaint in complaints):
                raise


def _group_array_elements(jobs: Sequence[str]) -> Iterator[str]:
    """Yield the jobs, with the elements of an array as one word: `7_[0-2,5]`."""
    elements: dict[int, set[int]] = defaultdict(set)
    for job in map(JobId.parse, jobs):
        if job.index is None:
            yield str(job)
        else:
            elements[job.main].add(job.index)
    for main, indices in elements.items():
        yield f"{main}_[{format_ranges(indices).replace(' ', '')}]"
