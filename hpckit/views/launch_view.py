"""Views of a launch's runs: our record, Slurm's report and processes on this host, combined.

model.run decides what the answers mean. Our record is read before Slurm is asked. If the answers then say
that a run has ended but our record does not, the record is read again: the run may have ended in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from hpckit.context import Context
from hpckit.model.blocked import mark_runs_that_cannot_start
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.elastic import Satellite
from hpckit.model.events import LocalStarted, SubmitIntended, SubmitRefused, Submitted
from hpckit.model.history import LaunchHistory, build_launch_history
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.model.pool import JobPool, derive_view_in_shared_job, map_runs_to_shared_job_ids
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.stages import add_prerequisite_runs
from hpckit.model.states import RunState
from hpckit.record.index import LEAST_RUNS, RunIndex, load_run_index
from hpckit.record.launches import Launch, read_launch_events, read_launch_history, read_run_records
from hpckit.record.process import is_process_alive
from hpckit.record.store import read_last_lines
from hpckit.report.rows import Foreign, LaunchHead
from hpckit.report.selection import find_common_overrides
from hpckit.values import dataclass, replace
from hpckit.views.freshness import Freshness
from hpckit.views.scheduler import Scheduler, SchedulerReply, ask_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchView:
    """All runs of a launch, and the state of the scheduler; `warning` says why it does not answer.

    `auto_resume` is the job that will resume runs when all have ended, while Slurm has it. `asked_at` is when
    Slurm was asked, None if it did not answer. `kept` is the index, if one was used.
    """

    launch: Launch
    runs: tuple[RunView, ...]
    scheduler: Scheduler
    warning: str = ""
    auto_resume: Observation | None = None
    asked_at: datetime | None = None
    kept: RunIndex | None = None


_MOST_LOGS = 8
"""The logs of this many jobs are read for why their runs never began."""


class Ask(StrEnum):
    """The runs to ask the scheduler about: a completed run no longer changes."""

    nothing = "nothing"
    open_runs = "open_runs"
    all_runs = "all_runs"


RecordedProcess = tuple[str, int, str]
"""The process that manages a run: host, pid, start mark."""


def build_launch_view(
    launch: Launch,
    context: Context,
    *,
    ask: Ask = Ask.all_runs,
    indices: Sequence[int] | None = None,
    freshness: Freshness | None = None,
) -> LaunchView:
    """Return the views of all runs, or of `indices`: see `build_launch_views`."""
    (view,) = build_launch_views([(launch, indices)], context, ask=ask, freshness=freshness)
    return view


def build_launch_views(
    wanted: Iterable[tuple[Launch, Sequence[int] | None]],
    context: Context,
    *,
    ask: Ask = Ask.all_runs,
    freshness: Freshness | None = None,
) -> tuple[LaunchView, ...]:
    """Return the views of several launches, each with all its runs or the given ones.

    Each scheduler is asked once about all launches; one that does not answer is a warning, not an
    error. Use `freshness` only for display: decisions must be based on a view without it, for which
    Slurm itself is asked and the files of all runs are read, but no metrics.
    """
    readings = [_Reading.read_launch_record(one, indices, ask, context, freshness) for one, indices in wanted]
    replies = [SchedulerReply(scheduler=Scheduler.none)] * len(readings)
    groups: dict[str | None, list[int]] = {}
    for place, reading in enumerate(readings):
        if reading.jobs:
            groups.setdefault(reading.launch.cluster.bin_dir, []).append(place)
    for places in groups.values():
        asking = [readings[place] for place in places]
        questions = [(one.launch, one.history.cluster, one.jobs) for one in asking]
        for place, reply in zip(places, ask_scheduler(questions, context, freshness), strict=True):
            replies[place] = reply
    return tuple(
        reading.build_view_with_slurm_reply(reply) for reading, reply in zip(readings, replies, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What our own record says about a launch, and the jobs to ask about.

    `records` are those of the `meant` runs (None: all) and of the runs that they follow. `metrics`
    is whether they include metrics.
    """

    launch: Launch
    meant: Sequence[int] | None
    executors: Mapping[int, LocalStarted]
    records: tuple[RunRecord, ...]
    history: LaunchHistory
    pools: Mapping[int, JobPool]
    jobs: tuple[str, ...]
    kept: RunIndex | None
    metrics: bool

    @classmethod
    def read_launch_record(
        cls,
        launch: Launch,
        meant: Sequence[int] | None,
        ask: Ask,
        context: Context,
        freshness: Freshness | None,
    ) -> _Reading:
        """Read the record of a launch; runs that follow others are read with those."""
        indices = meant
        if launch.stages and indices is not None:
            indices = add_prerequisite_runs(launch.stages, indices)
        executors, shown = read_local_executors(launch), freshness is not None
        kept = (
            None if freshness is None else _load_index_if_useful(launch, context, indices, anew=freshness.now)
        )
        records = read_run_records(launch, indices, kept=kept, metrics=shown)
        history = read_launch_history(launch)
        pools = map_runs_to_shared_job_ids(history, (record.index for record in records))
        on_slurm = launch.cluster.kind is ClusterKind.slurm
        return cls(
            launch=launch,
            meant=meant,
            executors=executors,
            records=records,
            history=history,
            pools=pools,
            jobs=_list_slurm_jobs_to_query(records, history, pools, ask) if on_slurm else (),
            kept=kept,
            metrics=shown,
        )

    def build_view_with_slurm_reply(self, answer: SchedulerReply) -> LaunchView:
        """Combine the record and the answer."""
        asked = frozenset(self.jobs if answer.scheduler is Scheduler.answered else ())
        carriers = {_find_managing_process(record, self.executors) for record in self.records} - {None}
        living = {carrier: is_process_alive(*carrier) for carrier in carriers if carrier is not None}
        runs = _reread_outdated_records(_World(self, answer.observations, asked, living))
        if self.launch.stages:
            runs = _mark_runs_blocked_by_stages(runs, self.launch, self.history, self.meant)
        runs = tuple(_add_log_lines_to_unstarted(runs, self.launch, self.history))
        if self.kept is not None:
            self.kept.save_new_entries()
        auto_resume = answer.observations.get(self.history.auto_resume_job or "")
        return LaunchView(
            launch=self.launch,
            runs=runs,
            scheduler=answer.scheduler,
            warning=answer.warning,
            auto_resume=None if auto_resume is None or auto_resume.state.ended else auto_resume,
            asked_at=answer.asked_at,
            kept=self.kept,
        )


def print_view_warnings(views: Iterable[LaunchView], context: Context) -> None:
    """Print what views warn of, each text once."""
    for warning in dict.fromkeys(view.warning for view in views if view.warning):
        context.note(f"warning: {warning}")


def _load_index_if_useful(
    launch: Launch, context: Context, indices: Sequence[int] | None, *, anew: bool
) -> RunIndex | None:
    """Return the index of a launch, if more than a few of its runs are wanted."""
    if indices is not None and len(indices) < LEAST_RUNS:
        return None
    if launch.stranger is not None:
        # Another user's index cannot be trusted, and must not be written.
        return None
    return load_run_index(launch.paths, len(launch.runs), context.now(), anew=anew)


def _reread_outdated_records(world: _World) -> tuple[RunView, ...]:
    """Return the views, after reading the records again where Slurm has newer information.

    Our record may not show an end that came in the meantime, or an index may not show that a run began again.
    """
    reading = world.reading
    views = [world.build_run_view(record) for record in reading.records]
    some = [
        view.record.index
        for view in views
        if (not view.record.state.ended and view.can_no_longer_change)
        or (view.record.state is RunState.completed and view.requeued_since_last_attempt)
    ]
    again = read_run_records(reading.launch, some, metrics=reading.metrics) if some else ()
    anew = {record.index: record for record in again}
    return tuple(
        world.build_run_view(anew[view.record.index]) if view.record.index in anew else view for view in views
    )


def _add_log_lines_to_unstarted(
    runs: Iterable[RunView], launch: Launch, history: LaunchHistory
) -> Iterator[RunView]:
    """Yield the runs; the first ones that never began get the last line of their job's log."""
    left = _MOST_LOGS
    for view in runs:
        job, seen = view.record.job, view.observation
        unborn = seen is not None and seen.state.ended and not view.record.has_attempt_begun
        if not unborn or job is None or not left or view.state is RunState.cancelled:
            yield view
            continue
        left -= 1
        log = launch.paths.job_log(history.find_job_of_run(view.record.index).index, job)
        lines = [line for line in read_last_lines(log).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("hpckit: error: ")]
        said = (errors or lines or [""])[-1].removeprefix("hpckit: error: ")
        yield replace(view, said="" if said.startswith("hpckit: job ") else said)


def _mark_runs_blocked_by_stages(
    runs: Sequence[RunView], launch: Launch, history: LaunchHistory, meant: Sequence[int] | None
) -> tuple[RunView, ...]:
    of_slurm = launch.cluster.kind is ClusterKind.slurm
    waiting = history.list_unsubmitted_jobs() if of_slurm else ()
    known = mark_runs_that_cannot_start(
        runs,
        launch.stages,
        unborn=[run for job in waiting for run in job.runs],
        resumed={run: one.job_index for run, one in history.resumed.items()} if of_slurm else {},
    )
    kept = {view.record.index for view in known} if meant is None else set(meant)
    return tuple(view for view in known if view.record.index in kept)


def read_local_executors(launch: Launch) -> Mapping[int, LocalStarted]:
    """Return the local executor responsible for each run; runs that never had one are left out."""
    if launch.cluster.kind is not ClusterKind.local:
        return {}
    return read_launch_history(launch).executors


def list_unconfirmed_jobs(launch: Launch) -> tuple[JobSpec, ...]:
    """Return the jobs of which it is not known whether Slurm accepted them.

    They include jobs that were added since the launch was read.
    """
    latest: dict[int, bool] = {}
    events = read_launch_events(launch)
    for event in events:
        if isinstance(event, SubmitIntended | Submitted | SubmitRefused):
            latest[event.job_index] = isinstance(event, SubmitIntended)
    jobs = build_launch_history(launch.jobs, events).jobs
    return tuple(job for job in jobs if latest.get(job.index, False))


@dataclass(frozen=True, slots=True)
class _World:
    """What was seen outside our record at one moment; `asked` are the jobs that Slurm told of."""

    reading: _Reading
    observations: Mapping[str, Observation]
    asked: frozenset[str]
    living: Mapping[RecordedProcess, bool | None]

    def build_run_view(self, record: RunRecord) -> RunView:
        reading = self.reading
        carrier = _find_managing_process(record, reading.executors)
        seen = self.observations.get(record.job or "")
        # An answer from before the attempt began says nothing about its end.
        early = (
            seen is not None
            and seen.state.ended
            and record.has_attempt_begun
            and not record.state.ended
            and record.started_at is not None
            and seen.seen_at < record.started_at
        )
        present = RunView(
            record=record,
            observation=None if early else seen,
            asked=record.job in self.asked and not early,
            alive=None if carrier is None else self.living.get(carrier),
            satellites=tuple(self._list_living_satellites(record.index)),
        )
        pool = reading.pools.get(record.index)
        if pool is not None:
            asked = not self.asked.isdisjoint(pool)
            return derive_view_in_shared_job(present, pool, self.observations, asked=asked)
        successor = reading.history.find_successor_job(record.index)
        return switch_to_successor_job(present, self.observations.get(successor or ""))

    def _list_living_satellites(self, run: int) -> Iterator[Satellite]:
        for job, spec in self.reading.history.list_satellite_jobs(run).items():
            seen = self.observations.get(job)
            if seen is not None and not seen.state.ended:
                yield Satellite(
                    job=job,
                    state=seen.state.text.lower(),
                    replicas=spec.replicas,
                    nodes=expand_hostlist(seen.nodes) if seen.nodes else (),
                )


def _find_managing_process(
    record: RunRecord, executors: Mapping[int, LocalStarted]
) -> RecordedProcess | None:
    """Return the process that manages a run: the executor while it waits, then its supervisor."""
    if record.state.ended:
        return None
    if record.state is not RunState.pending:
        return record.supervisor
    executor = executors.get(record.index)
    return None if executor is None else (executor.host, executor.pid, executor.started)


def _list_slurm_jobs_to_query(
    records: Iterable[RunRecord], history: LaunchHistory, pools: Mapping[int, JobPool], ask: Ask
) -> tuple[str, ...]:
    """Return the jobs to ask about: of these runs, their successors, satellites, auto-resume."""
    if ask is Ask.nothing:
        return ()
    asked = [record for record in records if ask is Ask.all_runs or record.state is not RunState.completed]
    jobs = [record.job for record in asked if record.index not in pools]
    shared = {pools[record.index] for record in asked if record.index in pools}
    jobs += [job for pool in shared for job in pool]
    jobs += [history.find_successor_job(record.index) for record in asked]
    jobs += [job for record in asked for job in history.list_satellite_jobs(record.index)]
    jobs += [history.auto_resume_job] if any(jobs) else []
    return tuple(dict.fromkeys(job for job in jobs if job is not None))


def switch_to_successor_job(view: RunView, successor: Observation | None) -> RunView:
    """Return the view of a run, by its successor's job if the present job is over.

    While the present job is alive, it is the run's job. After that, the run's job is the successor,
    waiting or started, unless the run has completed or the successor has ended itself (cancelled or
    lost). A successor that has begun an attempt is already in the record.
    """
    if successor is None or successor.state.ended or view.record.job == successor.job:
        return view
    if view.state is RunState.completed or not view.can_no_longer_change:
        return view
    waiting = replace(view.record.reset_to_pending(), job=successor.job, restart_count=0)
    return RunView(record=waiting, observation=successor, asked=True)


def build_launch_head(launch: Launch) -> LaunchHead:
    """Return the heading above the runs of a launch."""
    stranger = launch.stranger
    return LaunchHead(
        id=launch.id,
        name=launch.name,
        folder=str(launch.folder),
        created_at=launch.created_at,
        common=find_common_overrides((run.overrides for run in launch.runs), launch.swept),
        foreign=None
        if stranger is None
        else Foreign(uid=stranger.uid, owner=stranger.owner, reason=stranger.reason),
    )
