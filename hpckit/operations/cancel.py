"""Stops waiting or running runs: records the request, then signals what carries the runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HpckitError, SchedulerAwayError, UsageError
from hpckit.model.events import CancelRequested
from hpckit.model.history import LaunchHistory, map_runs_to_job_ids
from hpckit.model.launch import ClusterKind
from hpckit.model.pool import map_runs_to_shared_job_ids
from hpckit.model.run import RunView
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, read_launch_history, read_run_records
from hpckit.record.lookup import Selection
from hpckit.record.process import is_process_alive
from hpckit.report.selection import Filter
from hpckit.slurm.cached_query import ask_cluster_config
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.clusters import CANCEL_THERE, check_jobs_are_own, explain_why_cluster_lacks_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_living_jobs_by_name
from hpckit.values import dataclass
from hpckit.views.launch_view import Ask, RecordedProcess, build_launch_views, read_local_executors


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A cancellation of one launch: `views` are the selected runs, `targets` those not ended yet.

    `whole` is True if all runs of the launch are selected: then its auto-resume job is cancelled, too.
    """

    launch: Launch
    views: Sequence[RunView]
    targets: Sequence[RunView]
    whole: bool


def plan_cancellations(
    selections: Sequence[Selection], wanted: Filter, context: Context
) -> Iterator[Cancellation]:
    """Yield what to cancel of each launch: the runs that match the filter."""
    # With --all, most launches completed long ago: Slurm need not be asked about those.
    questions = [(selection.launch, selection.indices) for selection in selections]
    views = build_launch_views(questions, context, ask=Ask.open_runs)
    for selection, view in zip(selections, views, strict=True):
        meant = [run for run in view.runs if wanted.matches_run(run.state, run.record.overrides)]
        yield Cancellation(
            launch=selection.launch,
            views=meant,
            targets=[view for view in meant if not view.can_no_longer_change],
            whole=selection.index is None and wanted.takes_all_runs,
        )


def cancel_runs(cancellations: Sequence[Cancellation], context: Context) -> None:
    """Record the requests, then ask Slurm or the local processes to stop the runs.

    Does not wait for the runs to end and does not record their end: the supervisor does. A waiting
    local run is not started once the request is recorded. Raises HpckitError.
    """
    for asked in cancellations:
        indices = [target.record.index for target in asked.targets if not target.record.cancel_requested]
        if indices:
            event = CancelRequested(at=context.now(), runs=tuple(indices))
            record_launch_event(asked.launch.paths, event)
    _send_cancellations(cancellations, context)


def _send_cancellations(cancellations: Sequence[Cancellation], context: Context) -> None:
    """Ask everything that carries a run to stop; a failure for one does not prevent the others."""
    errors: list[HpckitError] = []
    of_clusters: dict[str | None, list[Cancellation]] = {}
    for asked in cancellations:
        if asked.launch.cluster.kind is not ClusterKind.local:
            of_clusters.setdefault(asked.launch.cluster.bin_dir, []).append(asked)
        elif asked.targets:
            with _collect_errors(errors):
                _signal_local_processes(asked.launch, asked.targets, whole=asked.whole)
    for bin_dir, given in of_clusters.items():
        with _collect_errors(errors):
            _cancel_slurm_jobs(bin_dir, given, context)
    for error in errors[1:]:
        context.note(f"error: {error.message}")
    if errors:
        raise errors[0]


@contextmanager
def _collect_errors(errors: list[HpckitError]) -> Iterator[None]:
    try:
        yield
    except HpckitError as error:
        errors.append(error)


def _list_auxiliary_jobs(asked: Cancellation, history: LaunchHistory) -> list[str]:
    """Return the jobs beside those of the runs: successors, satellites, and auto-resume jobs."""
    jobs = [history.auto_resume_job] if asked.whole else []
    jobs += [job for view in asked.views for job in history.list_satellite_jobs(view.record.index)]
    jobs += [history.find_successor_job(view.record.index) for view in asked.views]
    return [job for job in jobs if job is not None]


def _cancel_slurm_jobs(bin_dir: str | None, cancellations: Sequence[Cancellation], context: Context) -> None:
    """Cancel the jobs of all these launches at once; of none that this Slurm does not have."""
    commands = SlurmCommands(bin_dir=bin_dir, environ=context.environ)
    errors: list[HpckitError] = []
    living: Mapping[str, set[str]] = {}
    with _collect_errors(errors):
        living = ask_living_jobs_by_name(commands)
    config = ask_cluster_config(commands, context.now(), timedelta())
    jobs: list[str] = []
    for asked in cancellations:
        with _collect_errors(errors):
            history = read_launch_history(asked.launch)
            behind = _list_auxiliary_jobs(asked, history)
            known = [job for job in _list_recorded_jobs(asked, history) if job is not None]
            if why := explain_why_cluster_lacks_jobs(history.cluster, [*behind, *known], config):
                message = f"the jobs of {asked.launch.id} cannot be cancelled from here: {why}"
                raise SchedulerAwayError(message, hint=CANCEL_THERE)
            # Jobs of the launch that live under a name that it gave to none.
            mine, given = {*behind, *known}, {job.name for job in history.jobs}
            foreign = [name for name in living if name not in given]
            others = {job: name for name in foreign for job in living[name] & mine}
            check_jobs_are_own(others, asked.launch.folder, commands)
            # Jobs that wait for others come first, so that the end of those does not start them.
            jobs = [*behind, *_find_unrecorded_jobs(asked, history, living), *jobs, *known]
    with _collect_errors(errors):
        cancel_jobs(list(dict.fromkeys(jobs)), commands)
    if errors:
        raise errors[-1]


def _list_recorded_jobs(asked: Cancellation, history: LaunchHistory) -> Iterator[str | None]:
    """Yield the jobs of the runs; a shared job is cancelled only with the whole launch.

    A shared job reads the record by itself and ends the cancelled runs.
    """
    shared = map_runs_to_shared_job_ids(history, [target.record.index for target in asked.targets])
    yield from (target.record.job for target in asked.targets if target.record.index not in shared)
    if asked.whole:
        packed = [job.index for job in history.jobs if job.shared_job is not None]
        yield from (history.accepted.get(job) for job in packed if asked.targets)


def _find_unrecorded_jobs(
    asked: Cancellation, history: LaunchHistory, living: Mapping[str, set[str]]
) -> Iterator[str]:
    """Yield what Slurm has under the names of the launch's jobs, and is not known by the record.

    It may have accepted a job although sbatch never answered, or after that job was given up.
    """
    wanted = {view.record.index for view in asked.views}
    for spec in history.jobs:
        known = None if spec.index in history.dropped else history.accepted.get(spec.index)
        found = {job for job in living.get(spec.name, ()) if job.partition("_")[0] != known}
        if not asked.whole:
            every = (map_runs_to_job_ids(spec, main) for main in {job.partition("_")[0] for job in found})
            found &= {job for own in every for run, job in own.items() if run in wanted}
        yield from found


def _signal_local_processes(launch: Launch, targets: Iterable[RunView], *, whole: bool) -> None:
    """Signal the local executors (for the whole launch), else the supervisors of running runs."""
    executors = read_local_executors(launch)
    # Read again: a waiting run may have been started just before the request was recorded.
    records = read_run_records(launch, [target.record.index for target in targets])
    carriers = [record.supervisor for record in records if record.supervisor is not None]
    if whole:
        given = (executors.get(record.index) for record in records)
        all_of_them = {
            (carrier.host, carrier.pid, carrier.started) for carrier in given if carrier is not None
        }
        carriers = [carrier for carrier in all_of_them if is_process_alive(*carrier) is not False] or carriers
    elsewhere = sorted({carrier[0] for carrier in carriers if not _terminate_process(carrier)})
    if elsewhere:
        raise UsageError(
            f"the cancellation is recorded, but the runs' processes are on {', '.join(elsewhere)}, "
            "and this host cannot signal them",
            hint=f"run there: hpckit cancel {launch.folder}",
        )


def _terminate_process(carrier: RecordedProcess) -> bool:
    """Signal a process if it is still the recorded one; False if it is on another host."""
    host, pid, mark = carrier
    lives = is_process_alive(host, pid, mark)
    if lives:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
    return lives is not None
