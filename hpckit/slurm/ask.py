"""Asks squeue and sacct about many jobs, and reads any form they answer in.

They are asked for text, but a site's own squeue may print JSON anyway. If the text is a table of
the site's own, JSON is requested once. The meaning of a row is left to slurm.parse.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from hpckit.errors import SchedulerAwayError, SchedulerRefusedError
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import SACCT_FIELDS, SACCT_FORMAT, SQUEUE_FIELDS, SQUEUE_FORMAT, readable
from hpckit.slurm.parse_json import NO_FILTER, complaint, lines_of

_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """The fields that a program is asked for, and the option that requests them."""

    program: str
    fields: tuple[str, ...]
    form: str


QUEUE = JobQuery(program="squeue", fields=SQUEUE_FIELDS, form=f"--Format={SQUEUE_FORMAT}")
ACCOUNTS = JobQuery(program="sacct", fields=SACCT_FIELDS, form=f"--format={SACCT_FORMAT}")


def query_jobs(
    question: JobQuery,
    commands: SlurmCommands,
    *words: str,
    only: Mapping[str, object] = NO_FILTER,
) -> str:
    """Return the jobs selected by `words`, one line each, with the fields of `question`.

    `only` selects in JSON what `words` selects in text (see `lines_of`). Raises SchedulerAwayError,
    also if the output cannot be read: a job that is not visible may still exist.
    """
    said = commands.run(question.program, *words, question.form)
    lines = _lines(said, question, only)
    if lines is None:
        with contextlib.suppress(SchedulerRefusedError):
            said = commands.run(question.program, *words, "--json")
            lines = _lines(said, question, only)
    if lines is None:
        raise _unreadable(question, said)
    return lines


def _lines(said: str, question: JobQuery, only: Mapping[str, object]) -> str | None:
    if not said.strip() or readable(said, question.fields):
        return said
    return lines_of(said, question.fields, only)


def _unreadable(question: JobQuery, said: str) -> SchedulerAwayError:
    words = complaint(said) or f"it printed {said.strip()[:_SHOWN]!r}"
    return SchedulerAwayError(
        f"{question.program} listed no jobs that can be read, as text or as JSON: {words}",
        hint=f"if this {question.program} is a script of the site's, set cluster.bin_dir to the "
        "folder of Slurm's own programs",
    )
