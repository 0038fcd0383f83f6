"""`hpckit cancel`: stops runs, waiting or running; safe to repeat.

Responsible for recording the wish first and then telling whoever carries the runs: Slurm, the
local executor, or a supervisor on this host. It must not wait for the end, nor write one: the
supervisor does. A waiting local run is not started once the wish is recorded.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.cli.context import Context, add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.views import Carrier, launch_view, local_executors, unconfirmed
from hpckit.errors import UsageError
from hpckit.model.events import CancelRequested
from hpckit.model.history import job_ids
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.record.find import find
from hpckit.record.launches import Launch, read_launch_history, read_runs
from hpckit.record.process import alive
from hpckit.record.store import append_event


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `cancel` understands."""
    add_reference(parser)
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Cancel all runs of a launch, or one; 0 also where they had ended already."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    launch = selection.launch
    indices = None if selection.index is None else [selection.index]
    view = launch_view(launch, context, indices=indices)
    targets = [one for one in view.runs if not one.settled]
    _record(launch, targets, context)
    _tell(launch, view.runs, targets, whole=selection.index is None, context=context)
    _report(launch, view.runs, targets, arguments, context)
    return 0


def _record(launch: Launch, targets: Iterable[RunView], context: Context) -> None:
    wished = tuple(one.record.index for one in targets if not one.record.cancel_requested)
    if wished:
        append_event(launch.paths.events, CancelRequested(at=context.now(), runs=wished))


def _tell(
    launch: Launch,
    views: Sequence[RunView],
    targets: Sequence[RunView],
    *,
    whole: bool,
    context: Context,
) -> None:
    if launch.cluster.kind is not ClusterKind.local:
        _tell_slurm(
            launch, _behind(launch, views, whole=whole), targets, whole=whole, context=context
        )
    elif targets:
        _tell_processes(launch, targets, whole=whole)


def _behind(launch: Launch, views: Sequence[RunView], *, whole: bool) -> list[str]:
    """Return the jobs that wait for others to end: successors of these runs, and the janitor."""
    history = read_launch_history(launch)
    jobs = [history.janitor_job] if whole else []
    jobs += [history.successor_of(one.record.index) for one in views]
    return [job for job in jobs if job is not None]


def _tell_slurm(
    launch: Launch,
    behind: Sequence[str],
    targets: Sequence[RunView],
    *,
    whole: bool,
    context: Context,
) -> None:
    # Imported here: only launches on Slurm have somebody to tell.
    from hpckit.slurm.cancel import cancel  # noqa: PLC0415
    from hpckit.slurm.commands import SlurmCommands  # noqa: PLC0415
    from hpckit.slurm.query import find_by_name  # noqa: PLC0415

    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
    known = {one.record.index: one.record.job for one in targets if one.record.job is not None}
    wanted = {one.record.index for one in targets}
    found: list[str] = []
    for spec_index in unconfirmed(launch):
        # sbatch may have been accepted although its answer never came: look for it by name.
        spec = launch.jobs[spec_index]
        for main in find_by_name(spec.name, commands) if wanted or whole else ():
            found += [job for index, job in job_ids(spec, main).items() if index in wanted]
            found += [] if spec.runs or not whole else [main]
    # What waits for the others goes first, so that their end does not start it.
    jobs = dict.fromkeys([*behind, *(job for _, job in sorted(known.items())), *found])
    if jobs:
        cancel(list(jobs), commands)


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


def _report(
    launch: Launch,
    views: Sequence[RunView],
    targets: Sequence[RunView],
    arguments: argparse.Namespace,
    context: Context,
) -> None:
    told = {one.record.index for one in targets}
    outcomes = [
        _Outcome(
            run=one.record.id,
            index=one.record.index,
            state=one.state.value,
            job=one.record.job,
            outcome="requested" if one.record.index in told else "already_ended",
        )
        for one in views
    ]
    if arguments.json:
        context.say_json({"launch": launch.id, "runs": outcomes})
        return
    for one in outcomes:
        done = "cancelling" if one.outcome == "requested" else "already over"
        context.say(f"{one.run}: {done} ({one.state})")
