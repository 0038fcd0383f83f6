"""Views of a launch's runs: our record, Slurm's word and what lives on this host, put together.

Responsible for asking in the right order; it must not decide what the answers mean (model/run).
Our record is read first and Slurm is asked after it. Where the answers then say that a run ended
which our record has not seen end, the record is read once more: it may have ended in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from hpckit.cli.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.events import LocalStarted, SubmitIntended, SubmitRefused, Submitted
from hpckit.model.held_up import held_up
from hpckit.model.history import LaunchHistory, read_history
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.model.pool import Pool, in_pool, read_pools
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.stages import with_followed
from hpckit.model.states import RunState
from hpckit.model.succession import carried_on
from hpckit.record.launches import Launch, read_launch_events, read_launch_history, read_runs
from hpckit.record.process import alive

SCHEDULER_TIMEOUT = timedelta(seconds=20)


class Scheduler(StrEnum):
    """What became of asking the scheduler. `none`: there was nobody or nothing to ask."""

    answered = "answered"
    away = "away"
    none = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchView:
    """All runs of a launch, and how the scheduler was; `warning` says why it is away.

    `janitor` is the job that will resume runs when all have ended, while Slurm has it.
    """

    launch: Launch
    runs: tuple[RunView, ...]
    scheduler: Scheduler
    warning: str = ""
    janitor: Observation | None = None


class Ask(StrEnum):
    """Whom to ask the scheduler about: a run that completed does not change any more."""

    nothing = "nothing"
    open_runs = "open_runs"
    all_runs = "all_runs"


Carrier = tuple[str, int, str]
"""The process that carries a run: host, pid, start mark."""


def views(launch: Launch, context: Context, *, ask_slurm: bool = True) -> tuple[RunView, ...]:
    """Return the views of all runs; a scheduler that is away is noted on standard error."""
    view = launch_view(launch, context, ask=Ask.open_runs if ask_slurm else Ask.nothing)
    if view.warning:
        context.note(f"warning: {view.warning}")
    return view.runs


def launch_view(
    launch: Launch,
    context: Context,
    *,
    ask: Ask = Ask.all_runs,
    indices: Sequence[int] | None = None,
) -> LaunchView:
    """Return the views of all runs, or of these; a scheduler that is away is said, not raised."""
    (view,) = launch_views([(launch, indices)], context, ask=ask)
    return view


def launch_views(
    wanted: Iterable[tuple[Launch, Sequence[int] | None]],
    context: Context,
    *,
    ask: Ask = Ask.all_runs,
) -> tuple[LaunchView, ...]:
    """Return the views of several launches, each of all its runs or of these.

    Each scheduler is asked once, about all of them.
    """
    readings = [_Reading.of(launch, indices, ask) for launch, indices in wanted]
    answers: dict[str | None, _Answer] = {}
    for bin_dir in dict.fromkeys(one.launch.cluster.bin_dir for one in readings if one.jobs):
        of_it = [one for one in readings if one.launch.cluster.bin_dir == bin_dir]
        jobs = tuple(dict.fromkeys(job for one in of_it for job in one.jobs))
        answers[bin_dir] = _ask(bin_dir, jobs, context)
    nobody = _Answer(scheduler=Scheduler.none)
    return tuple(
        one.view(answers[one.launch.cluster.bin_dir] if one.jobs else nobody) for one in readings
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one scheduler said of the jobs it was asked about."""

    scheduler: Scheduler
    observations: Mapping[str, Observation] = field(default_factory=dict)
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What our own record says of a launch, and the jobs to ask about."""

    launch: Launch
    indices: Sequence[int] | None
    meant: Sequence[int] | None
    executors: Mapping[int, LocalStarted]
    records: tuple[RunRecord, ...]
    history: LaunchHistory
    pools: Mapping[int, Pool]
    jobs: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch, indices: Sequence[int] | None, ask: Ask) -> _Reading:
        """Read the record of a launch; runs that follow others are seen with those."""
        meant = indices
        if launch.stages and indices is not None:
            indices = with_followed(launch.stages, indices)
        executors = local_executors(launch)
        records = read_runs(launch, indices)
        history = read_launch_history(launch)
        pools = read_pools(history, (one.index for one in records))
        on_slurm = launch.cluster.kind is ClusterKind.slurm
        return cls(
            launch=launch,
            indices=indices,
            meant=meant,
            executors=executors,
            records=records,
            history=history,
            pools=pools,
            jobs=_jobs(records, history, pools, ask) if on_slurm else (),
        )

    def view(self, answer: _Answer) -> LaunchView:
        """Put the record and the answer together."""
        history, observations = self.history, answer.observations
        answered = answer.scheduler is Scheduler.answered
        world = _World(
            observations=observations,
            asked=frozenset(self.jobs) if answered else frozenset(),
            executors=self.executors,
            living=_living(self.executors, self.records),
            successors={
                run: job for run in history.successors if (job := history.successor_of(run))
            },
            pools=self.pools,
        )
        runs = tuple(world.view(record) for record in self.records)
        if any(view.settled and not view.record.state.ended for view in runs):
            runs = tuple(world.view(record) for record in read_runs(self.launch, self.indices))
        if self.launch.stages:
            unborn = {run for job in history.waiting() for run in job.runs} if self.jobs else ()
            runs = held_up(runs, self.launch.stages, unborn=unborn)
            meant = self.meant
            runs = tuple(one for one in runs if meant is None or one.record.index in meant)
        janitor = observations.get(history.janitor_job or "")
        return LaunchView(
            launch=self.launch,
            runs=runs,
            scheduler=answer.scheduler,
            warning=answer.warning,
            janitor=None if janitor is None or janitor.state.ended else janitor,
        )


def _ask(bin_dir: str | None, jobs: Sequence[str], context: Context) -> _Answer:
    try:
        observations = _observe(bin_dir, jobs, context)
    except SchedulerError as error:
        warning = f"{error.message}; this is our own record alone"
        return _Answer(scheduler=Scheduler.away, warning=warning)
    return _Answer(scheduler=Scheduler.answered, observations=observations)


def local_executors(launch: Launch) -> Mapping[int, LocalStarted]:
    """Return the local executor whose turn each run is; runs that never had one are left out."""
    if launch.cluster.kind is not ClusterKind.local:
        return {}
    return read_launch_history(launch).executors


def unconfirmed(launch: Launch) -> tuple[JobSpec, ...]:
    """Return the jobs of which it is not known whether Slurm accepted them.

    Jobs that were added since the launch was read are among them.
    """
    latest: dict[int, bool] = {}
    events = read_launch_events(launch)
    for event in events:
        if isinstance(event, SubmitIntended | Submitted | SubmitRefused):
            latest[event.job_index] = isinstance(event, SubmitIntended)
    jobs = read_history(launch.jobs, events).jobs
    return tuple(jobs[index] for index, open_still in latest.items() if open_still)


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What was seen outside our record, at one moment."""

    observations: Mapping[str, Observation]
    asked: frozenset[str]
    executors: Mapping[int, LocalStarted]
    living: Mapping[Carrier, bool | None]
    successors: Mapping[int, str]
    pools: Mapping[int, Pool]

    def view(self, record: RunRecord) -> RunView:
        carrier = _carrier(record, self.executors)
        present = RunView(
            record=record,
            observation=self.observations.get(record.job or ""),
            asked=record.job in self.asked,
            alive=None if carrier is None else self.living.get(carrier),
        )
        pool = self.pools.get(record.index)
        if pool is not None:
            asked = any(job in self.asked for job in pool.jobs)
            return in_pool(present, pool, self.observations, asked=asked)
        return carried_on(present, self.observations.get(self.successors.get(record.index, "")))


def _carrier(record: RunRecord, executors: Mapping[int, LocalStarted]) -> Carrier | None:
    """Return the process that carries a run: the executor while it waits, then its supervisor."""
    if record.state.ended:
        return None
    if record.state is not RunState.pending:
        return record.supervisor
    executor = executors.get(record.index)
    return None if executor is None else (executor.host, executor.pid, executor.started)


def _living(
    executors: Mapping[int, LocalStarted], records: Iterable[RunRecord]
) -> Mapping[Carrier, bool | None]:
    carriers = {_carrier(record, executors) for record in records} - {None}
    return {carrier: alive(*carrier) for carrier in carriers if carrier is not None}


def _jobs(
    records: Iterable[RunRecord], history: LaunchHistory, pools: Mapping[int, Pool], ask: Ask
) -> tuple[str, ...]:
    """Return the jobs to ask about: of these runs, of their successors, and the janitor."""
    if ask is Ask.nothing:
        return ()
    asked = [one for one in records if ask is Ask.all_runs or one.state is not RunState.completed]
    jobs = [one.job for one in asked if one.index not in pools]
    shared = {pools[one.index] for one in asked if one.index in pools}
    jobs += [job for pool in shared for job in pool.jobs]
    jobs += [history.successor_of(one.index) for one in asked]
    jobs += [history.janitor_job] if any(jobs) else []
    return tuple(dict.fromkeys(job for job in jobs if job is not None))


def _observe(
    bin_dir: str | None, jobs: Sequence[str], context: Context
) -> Mapping[str, Observation]:
    # Imported here: only launches on Slurm have somebody to ask.
    from hpckit.slurm.commands import SlurmCommands  # noqa: PLC0415
    from hpckit.slurm.query import observe  # noqa: PLC0415

    commands = SlurmCommands(bin_dir=bin_dir, environ=context.environ, timeout=SCHEDULER_TIMEOUT)
    return observe(jobs, commands, context.now())
