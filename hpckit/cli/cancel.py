"""`hpckit cancel`: stops runs, waiting or running; safe to repeat.

Responsible for recording the wish first and then telling whoever carries the runs: Slurm, the
local executor, or a supervisor on this host. It must not wait for the end, nor write one: the
supervisor does. A waiting local run is not started once the wish is recorded.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpckit.cli.context import Context, add_json, add_output_dir, add_reference
from hpckit.cli.selecting import add_filters, filter_of, launches_of
from hpckit.cli.views import (
    Ask,
    Carrier,
    LaunchView,
    launch_views,
    local_executors,
    unconfirmed,
)
from hpckit.errors import HpckitError, UsageError
from hpckit.model.counted import counted
from hpckit.model.events import CancelRequested
from hpckit.model.history import job_ids
from hpckit.model.launch import ClusterKind
from hpckit.model.pool import read_pools
from hpckit.model.ranges import ranges
from hpckit.model.run import RunView
from hpckit.record.launch_events import record_event
from hpckit.record.launches import Launch, read_launch_history, read_runs
from hpckit.record.lookup import Selection
from hpckit.record.process import alive
from hpckit.report.rows import count_states
from hpckit.report.selection import Filter
from hpckit.report.text import states_text

if TYPE_CHECKING:
    from hpckit.slurm.commands import SlurmCommands


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What is asked of one launch: of the runs that are meant, `targets` have not ended.

    `whole` is whether all its runs are meant, so that what resumes them goes, too.
    """

    launch: Launch
    views: Sequence[RunView]
    targets: Sequence[RunView]
    whole: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `cancel` understands."""
    add_reference(parser)
    parser.add_argument(
        "--all", action="store_true", help="of all launches there are, instead of one"
    )
    add_filters(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be cancelled, and change nothing"
    )
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Cancel runs of a launch, or of all; 0 also where they had ended already."""
    wanted = filter_of(arguments)
    some = arguments.all or not wanted.all
    selections = list(launches_of(arguments, context, all_of="cancel"))
    # Among all launches, most have completed long ago: Slurm need not be asked about those.
    questions = [(one.launch, None if one.index is None else [one.index]) for one in selections]
    views = launch_views(questions, context, ask=Ask.open_runs)
    wishes = [_wish(*pair, wanted) for pair in zip(selections, views, strict=True)]
    if some:
        wishes = [one for one in wishes if one.targets]
        _announce(wishes, context)
    if not arguments.dry_run:
        for wish in wishes:
            _record(wish.launch, wish.targets, context)
        _tell(wishes, context)
    _report(wishes, arguments, context)
    return 0


def _wish(selection: Selection, view: LaunchView, wanted: Filter) -> _Wish:
    meant = [one for one in view.runs if wanted.takes(one.state, one.record.overrides)]
    return _Wish(
        launch=selection.launch,
        views=meant,
        targets=[one for one in meant if not one.settled],
        whole=selection.index is None and wanted.all,
    )


def _announce(wishes: Sequence[_Wish], context: Context) -> None:
    """Say beforehand which runs a filter has found."""
    for wish in wishes:
        launch, targets = wish.launch, wish.targets
        counts = states_text(count_states(one.state for one in targets))
        indices = ranges([one.record.index for one in targets])
        context.note(
            f"{len(targets)} of {counted(len(launch.runs), 'run')} of {launch.id}: "
            f"{indices} ({counts})"
        )
    if not wishes:
        context.note("there is nothing to cancel")


def _record(launch: Launch, targets: Iterable[RunView], context: Context) -> None:
    wished = tuple(one.record.index for one in targets if not one.record.cancel_requested)
    if wished:
        record_event(launch.paths, CancelRequested(at=context.now(), runs=wished))


def _tell(wishes: Iterable[_Wish], context: Context) -> None:
    """Tell everybody who carries a run; one who cannot be told does not keep the others from it."""
    errors: list[HpckitError] = []
    of_clusters: dict[str | None, list[_Wish]] = {}
    for wish in wishes:
        if wish.launch.cluster.kind is not ClusterKind.local:
            of_clusters.setdefault(wish.launch.cluster.bin_dir, []).append(wish)
        elif wish.targets:
            with _noted(errors):
                _tell_processes(wish.launch, wish.targets, whole=wish.whole)
    for bin_dir, given in of_clusters.items():
        with _noted(errors):
            _tell_slurm(bin_dir, given, context)
    for error in errors[1:]:
        context.note(f"error: {error.message}")
    if errors:
        raise errors[0]


@contextmanager
def _noted(errors: list[HpckitError]) -> Iterator[None]:
    try:
        yield
    except HpckitError as error:
        errors.append(error)


def _behind(wish: _Wish) -> list[str]:
    """Return the jobs that wait for others to end: successors of these runs, and the janitor."""
    history = read_launch_history(wish.launch)
    jobs = [history.janitor_job] if wish.whole else []
    jobs += [history.successor_of(one.record.index) for one in wish.views]
    return [job for job in jobs if job is not None]


def _tell_slurm(bin_dir: str | None, wishes: Sequence[_Wish], context: Context) -> None:
    """Cancel the jobs of all these launches at once."""
    # Imported here: only launches on Slurm have somebody to tell.
    from hpckit.slurm.cancel import cancel  # noqa: PLC0415
    from hpckit.slurm.commands import SlurmCommands  # noqa: PLC0415

    commands = SlurmCommands(bin_dir=bin_dir, environ=context.environ)
    behind = [job for wish in wishes for job in _behind(wish)]
    known = [job for wish in wishes for job in _known_jobs(wish)]
    found = [job for wish in wishes for job in _unconfirmed_jobs(wish, commands)]
    # What waits for the others goes first, so that their end does not start it.
    jobs = dict.fromkeys([*behind, *(job for job in known if job is not None), *found])
    if jobs:
        cancel(list(jobs), commands)


def _known_jobs(wish: _Wish) -> Iterator[str | None]:
    """Yield the jobs of the runs; one that others share is ended only with all of the launch.

    A job that is shared looks into the record by itself, and ends the runs that are cancelled.
    """
    history = read_launch_history(wish.launch)
    shared = read_pools(history, [one.record.index for one in wish.targets])
    yield from (one.record.job for one in wish.targets if one.record.index not in shared)
    if wish.whole:
        packed = [job.index for job in history.jobs if job.pack is not None]
        yield from (history.accepted.get(job) for job in packed if wish.targets)


def _unconfirmed_jobs(wish: _Wish, commands: SlurmCommands) -> Iterator[str]:
    """Yield jobs that sbatch may have been given although its answer never came, by name."""
    from hpckit.slurm.query import find_by_name  # noqa: PLC0415  # as above

    wanted = {one.record.index for one in wish.targets}
    for spec in unconfirmed(wish.launch):
        for main in find_by_name(spec.name, commands) if wanted or wish.whole else ():
            yield from (job for index, job in job_ids(spec, main).items() if index in wanted)
            if wish.whole and not spec.runs:
                yield main


def _tell_processes(launch: Launch, targets: Iterable[RunView], *, whole: bool) -> None:
    """Signal the local executors (for the whole launch), else the supervisors of running runs."""
    executors = local_executors(launch)
    # Read anew: a run that was waiting may have been started just before the wish was recorded.
    records = read_runs(launch, [one.record.index for one in targets])
    carriers = [record.supervisor for record in records if record.supervisor is not None]
    if whole:
        given = (executors.get(record.index) for record in records)
        all_of_them = {(one.host, one.pid, one.started) for one in given if one is not None}
        carriers = [one for one in all_of_them if alive(*one) is not False] or carriers
    elsewhere = sorted({carrier[0] for carrier in carriers if not _stop(carrier)})
    if elsewhere:
        raise UsageError(
            f"the cancellation is recorded, but the runs are carried on {', '.join(elsewhere)}, "
            "where processes cannot be signalled from this host",
            hint=f"there: hpckit cancel {launch.folder}",
        )


def _stop(carrier: Carrier) -> bool:
    """Signal a process if it still is the one recorded; False where it is on another host."""
    host, pid, mark = carrier
    lives = alive(host, pid, mark)
    if lives:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
    return lives is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What `cancel --json` prints of a run: `state` is the state before."""

    run: str
    index: int
    state: str
    job: str | None
    outcome: str


def _report(wishes: Sequence[_Wish], arguments: argparse.Namespace, context: Context) -> None:
    outcomes = [_outcome(one, dry=arguments.dry_run) for wish in wishes for one in wish.views]
    if arguments.json:
        launch = wishes[0].launch.id if wishes and not arguments.all else None
        context.say_json({"launch": launch, "runs": outcomes})
        return
    for one in outcomes:
        context.say(f"{one.run}: {_SAID[one.outcome]} ({one.state})")


_SAID = {
    "requested": "cancelling",
    "would_request": "would be cancelled",
    "already_ended": "already over",
}


def _outcome(view: RunView, *, dry: bool) -> _Outcome:
    return _Outcome(
        run=view.record.id,
        index=view.record.index,
        state=view.state.value,
        job=view.record.job,
        outcome="already_ended" if view.settled else "would_request" if dry else "requested",
    )
