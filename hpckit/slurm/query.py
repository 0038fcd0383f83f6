"""Queries Slurm about jobs with as few calls as possible: squeue once, then sacct once.

It combines both answers, but does not decide what they mean for a run. Never one query per job:
slurmctld serves the whole cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from hpckit.errors import SchedulerAwayError, SchedulerError, SchedulerRefusedError
from hpckit.model.cluster.site import ClusterNode
from hpckit.model.run import Observation
from hpckit.model.states import parse_slurm_state
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import (
    EXCLUDED_FORMAT,
    SACCT_FIELDS,
    SACCT_FORMAT,
    SQUEUE_FIELDS,
    SQUEUE_FORMAT,
    TERMS_FORMAT,
    JobTerms,
    has_job_rows,
    name_cut_off_elements,
    parse_controller_time,
    parse_draining_nodes,
    parse_job_ids,
    parse_job_terms,
    parse_living_jobs,
    parse_node_names,
    parse_sacct,
    parse_scontrol_settings,
    parse_squeue,
    split_rows,
)
from hpckit.slurm.parse_json import NO_FILTER, format_json_errors, json_jobs_to_lines
from hpckit.slurm.site_parse import NODE_FORMAT, parse_cluster_nodes
from hpckit.values import dataclass, replace

_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """The fields that a program is asked for, and the option that requests them."""

    program: str
    fields: tuple[str, ...]
    form: str


QUEUE = JobQuery(program="squeue", fields=SQUEUE_FIELDS, form=f"--Format={SQUEUE_FORMAT}")
NAMES = JobQuery(
    program="squeue", fields=("JobArrayID", "State", "Name"), form="--Format=JobArrayID:0|,State:0|,Name:0|"
)
ACCOUNTS = JobQuery(program="sacct", fields=SACCT_FIELDS, form=f"--format={SACCT_FORMAT}")


def query_jobs(
    question: JobQuery, commands: SlurmCommands, *words: str, only: Mapping[str, object] = NO_FILTER
) -> str:
    """Return the jobs selected by `words`, one line each, with the fields of `question`.

    They are asked for as text, but a site's own squeue may print JSON anyway. If the text is a table of the
    site's own, JSON is requested once. `only` selects in JSON what `words` selects in text (see
    `json_jobs_to_lines`). Raises SchedulerAwayError, also if the output cannot be read: a job that is not
    visible may still exist.
    """
    said = commands.run(question.program, *words, question.form)
    lines = _extract_job_lines(said, question, only)
    if lines is None:
        with contextlib.suppress(SchedulerRefusedError):
            said = commands.run(question.program, *words, "--json")
            lines = _extract_job_lines(said, question, only)
    if lines is None:
        raise _build_unreadable_error(question, said)
    return lines


def _extract_job_lines(said: str, question: JobQuery, only: Mapping[str, object]) -> str | None:
    if not said.strip() or has_job_rows(said, question.fields):
        return said
    return json_jobs_to_lines(said, question.fields, only)


def _build_unreadable_error(question: JobQuery, said: str) -> SchedulerAwayError:
    words = format_json_errors(said) or f"it printed {said.strip()[:_SHOWN]!r}"
    return SchedulerAwayError(
        f"{question.program} listed no readable jobs, neither as text nor as JSON: {words}",
        hint=f"if this {question.program} is a script of the site's, set cluster.bin_dir to the "
        "folder of Slurm's own programs",
    )


_LISTED = 200
"""For more jobs than this (arrays count as one), squeue is asked for all of the user's."""

_WHOLE = ("--states=all", "--noheader")
"""Not `--array`: of elements at even distances, squeue then leaves out the last (22.05, 24.11)."""
_JOBS_ALONE = ("--allocations", "--noheader", "--parsable2")

_NAMED_SINCE = "now-30days"
"""How far back sacct looks for a name: without a job id, its default is midnight."""


JobSource = Callable[[Sequence[str]], Iterable[Observation]]
"""What tells of these jobs, possibly of others too; raises SchedulerError."""


def observe_jobs(jobs: Sequence[str], commands: SlurmCommands, now: datetime) -> dict[str, Observation]:
    """Return Slurm's view of these jobs (`123` or `123_4`), by id.

    A job that Slurm has forgotten is left out. Raises SchedulerAwayError only if neither squeue nor
    sacct answers.
    """

    def queue(jobs: Sequence[str]) -> Iterable[Observation]:
        ids = list_main_job_ids(jobs)
        which = "--me" if len(ids) > _LISTED else f"--jobs={','.join(ids)}"
        return parse_squeue(_ask_selected_jobs(which, commands), now)

    def accounts(jobs: Sequence[str]) -> Iterable[Observation]:
        return parse_sacct(ask_accounting(list_main_job_ids(jobs), commands), now)

    return combine_queue_and_accounting(queue, accounts, jobs, now)


def combine_queue_and_accounting(
    queue: JobSource, accounts: JobSource, jobs: Sequence[str], now: datetime
) -> dict[str, Observation]:
    """Return the view of these jobs by slurmctld and the accounting, as `observe` does."""
    if not jobs:
        return {}
    queued: dict[str, Observation] = {}
    accounted: dict[str, Observation] = {}
    errors: list[SchedulerError] = []
    with _collect_scheduler_errors(errors):
        queued.update((seen.job, seen) for seen in queue(jobs))
    unknown = [job for job in jobs if job not in queued]
    if unknown:
        with _collect_scheduler_errors(errors):
            accounted.update((account.job, account) for account in accounts(unknown))
    _raise_if_squeue_and_sacct_failed(errors)
    found = {**accounted, **queued}
    found.update(_find_cut_off_array_elements(unknown, found))
    if not errors:
        found.update(_find_vanished_array_elements(unknown, found, accounted, now))
    return {job: found[job] for job in jobs if job in found}


def _find_cut_off_array_elements(
    unknown: Iterable[str], found: Mapping[str, Observation]
) -> Iterator[tuple[str, Observation]]:
    for job in unknown:
        left = found.get(name_cut_off_elements(_main_job_id(job)))
        if "_" in job and job not in found and left is not None:
            yield job, replace(left, job=job)


def ask_queue(commands: SlurmCommands) -> str:
    """Return squeue's report of all of the user's jobs, with waiting array elements as ranges.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return query_jobs(QUEUE, commands, "--me", "--states=all", "--noheader")


def ask_accounting(ids: Sequence[str], commands: SlurmCommands) -> str:
    """Return sacct's report of jobs, by their main ids; raises as `ask_queue`."""
    return query_jobs(ACCOUNTS, commands, f"--jobs={','.join(ids)}", *_JOBS_ALONE)


def list_main_job_ids(jobs: Iterable[str]) -> list[str]:
    """Return the ids of jobs without their elements: each array once."""
    return sorted({_main_job_id(job) for job in jobs}, key=lambda job: (len(job), job))


def observe_queued_job(job: str, commands: SlurmCommands, now: datetime) -> Observation | None:
    """Return what slurmctld itself reports for one job; None if it has forgotten it.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    text = _ask_selected_jobs(f"--jobs={job}", commands)
    return next((seen for seen in parse_squeue(text, now) if seen.job == job), None)


def ask_job_terms(job: str, commands: SlurmCommands) -> JobTerms | None:
    """Return the terms that one job runs on; None if slurmctld has forgotten it.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return parse_job_terms(_ask_squeue_for_job(job, commands, f"--Format={TERMS_FORMAT}"))


def ask_excluded_nodes(job: str, commands: SlurmCommands) -> tuple[str, ...]:
    """Return the nodes that one job must not use; raises as `terms`."""
    return parse_node_names(_ask_squeue_for_job(job, commands, f"--format={EXCLUDED_FORMAT}"))


def ask_scontrol_settings(commands: SlurmCommands, *what: str) -> dict[str, str]:
    """Return `scontrol show` of `config` or of `partition NAME`; raises as `terms`."""
    return parse_scontrol_settings(commands.run("scontrol", "show", *what))


def ask_controller_settings(commands: SlurmCommands) -> tuple[dict[str, str], datetime | None]:
    """Return the controller's settings, and its clock; raises as `terms`."""
    text = commands.run("scontrol", "show", "config")
    return parse_scontrol_settings(text), parse_controller_time(text)


def ask_draining_nodes(nodes: str, commands: SlurmCommands) -> dict[str, str]:
    """Return which of these nodes (a hostlist) are being drained, and why; raises as `terms`.

    Like sinfo, scontrol loads the tables of nodes and partitions, once each, for any number of
    nodes; unlike sinfo, it prints every flag of a state.
    """
    return parse_draining_nodes(commands.run("scontrol", "--oneliner", "show", "node", nodes))


def count_queued_jobs(commands: SlurmCommands) -> int:
    """Return how many jobs the user has pending or running, counting each array element.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return len(_ask_living_jobs(commands, only={"user_id": os.getuid()}))


def ask_ids_of_queued_jobs(commands: SlurmCommands) -> frozenset[str]:
    """Return the main ids of the user's jobs that are pending, running or completing.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return frozenset(map(_main_job_id, _ask_living_jobs(commands)))


def ask_living_jobs_by_name(commands: SlurmCommands) -> dict[str, set[str]]:
    """Return the user's jobs that have not ended, by name, each array element separately.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    found: dict[str, set[str]] = defaultdict(set)
    only = {"user_id": os.getuid()}
    text = query_jobs(NAMES, commands, "--me", "--noheader", only=only)
    for job, state, name in split_rows(text, len(NAMES.fields)):
        found[name].update(parse_living_jobs(f"{job}|{state}"))
    return found


def _ask_living_jobs(commands: SlurmCommands, only: Mapping[str, object] = NO_FILTER) -> list[str]:
    return parse_living_jobs(query_jobs(QUEUE, commands, "--me", "--noheader", only=only))


def find_jobs_by_name(name: str, commands: SlurmCommands) -> tuple[str, ...]:
    """Return the main ids of the user's jobs with this name, oldest first.

    Raises SchedulerAwayError if neither squeue nor sacct answers: then it is unknown.
    """
    lines: list[str] = []
    errors: list[SchedulerError] = []
    for question, words in (
        (QUEUE, ("--me", "--states=all", "--noheader")),
        (ACCOUNTS, (f"--starttime={_NAMED_SINCE}", *_JOBS_ALONE)),
    ):
        with _collect_scheduler_errors(errors):
            named = query_jobs(question, commands, f"--name={name}", *words, only={"name": name})
            lines.extend(named.splitlines())
    _raise_if_squeue_and_sacct_failed(errors)
    found = {_main_job_id(one) for line in lines for one in parse_job_ids(line.partition("|")[0].strip())}
    return tuple(sorted(found, key=int))


@contextlib.contextmanager
def _collect_scheduler_errors(errors: list[SchedulerError]) -> Iterator[None]:
    try:
        yield
    except SchedulerError as error:
        errors.append(error)


def _raise_if_squeue_and_sacct_failed(errors: Sequence[SchedulerError]) -> None:
    if len(errors) > 1:
        said = "; ".join(error.message for error in errors)
        raise SchedulerAwayError(f"neither squeue nor sacct answers: {said}", hint=errors[0].hint)


def _find_vanished_array_elements(
    unknown: Iterable[str], found: Mapping[str, Observation], accounted: Iterable[str], now: datetime
) -> Iterator[tuple[str, Observation]]:
    """Yield the elements that neither program lists although the accounting has their array.

    They were cancelled while they waited: Slurm drops such an element without a trace, as measured
    with 22.05.
    """
    arrays = {_main_job_id(job) for job in accounted if "_" in job}
    for job in unknown:
        if "_" in job and job not in found and _main_job_id(job) in arrays:
            reason = "cancelled while it waited; Slurm keeps no record of such an array element"
            state = parse_slurm_state("CANCELLED")
            yield job, Observation(job=job, state=state, seen_at=now, reason=reason)


def _ask_selected_jobs(which: str, commands: SlurmCommands) -> str:
    return _empty_if_job_forgotten(lambda: query_jobs(QUEUE, commands, which, *_WHOLE))


def _ask_squeue_for_job(job: str, commands: SlurmCommands, form: str) -> str:
    return _empty_if_job_forgotten(lambda: commands.run("squeue", f"--jobs={job}", *_WHOLE, form))


def _empty_if_job_forgotten(listing: Callable[[], str]) -> str:
    try:
        return listing()
    except SchedulerRefusedError as error:
        # A single id that squeue no longer knows is an error; one among several is not.
        if "invalid job id" in error.message.lower():
            return ""
        raise


def _main_job_id(job: str) -> str:
    return job.partition("_")[0]


NODES = ("sinfo", "--all", "--Node", "--noheader", f"--format={NODE_FORMAT}")


def ask_cluster_nodes(commands: SlurmCommands) -> tuple[ClusterNode, ...]:
    """Return all nodes with what they have and their states, in one query.

    Raises SchedulerAwayError or SchedulerRefusedError.
    """
    return parse_cluster_nodes(commands.run(*NODES))


def ask_reserved_nodes(commands: SlurmCommands, name: str) -> tuple[str, ...]:
    """Return the nodes of a reservation; raises as `ask_cluster_nodes`."""
    return parse_node_names(ask_scontrol_settings(commands, "reservation", name).get("Nodes", ""))
