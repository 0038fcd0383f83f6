"""Submits failed or missing runs again, into the same run folders, from what was frozen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import SchedulerAwayError, SchedulerError, SchedulerRefusedError
from hpckit.model.counted import ranges
from hpckit.model.events import JobAdded
from hpckit.model.launch import ClusterKind
from hpckit.model.plain import plain_fields
from hpckit.model.plan import JobSpec
from hpckit.model.run import Observation, RunView
from hpckit.model.states import RunState, Standing
from hpckit.operations import local
from hpckit.operations.add_job import add_job, alone
from hpckit.operations.checkpoints import resume_words
from hpckit.operations.frozen_script import frozen_plan, rendered
from hpckit.operations.new_settings import (
    NewSettings,
    SettingsOrder,
    new_settings,
    record_settings,
    with_new_resources,
)
from hpckit.operations.resumable import check_unchanged, known_of, require_installation, spent_of
from hpckit.operations.service_jobs import feed, keep_auto_resume_job, keep_backlog_job
from hpckit.operations.slurm_check import Asked, as_submitted
from hpckit.operations.started import Started, on_slurm, on_this_machine
from hpckit.operations.submit import slurm_commands, submission_of
from hpckit.planning.recovery.resume import (
    Choice,
    Skipped,
    added_jobs,
    added_jobs_of_stages,
    choose,
)
from hpckit.record.attempts import latest_attempt
from hpckit.record.durations import time_taken
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.record.snapshot.changes import check_snapshot
from hpckit.report.pending import standing_text
from hpckit.report.rows import count_states
from hpckit.report.run_filter import RunFilter, failure_cause
from hpckit.report.text import states_text
from hpckit.values import dataclass, field, replace
from hpckit.views.launch_view import Ask, launch_view, unconfirmed
from hpckit.views.living_ranks import await_no_ranks
from hpckit.views.scheduler import Scheduler

_MOST_READ = 50
"""The checkpoints of at most this many runs are looked at, as each has a folder of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to resume: those of `indices` (None: of all runs) that match `wanted`.

    `bounded` is whether the runs' own budgets apply: the user did not ask for these runs
    explicitly. `settings` is with which other settings the runs are to continue. `unchecked` is
    whether Slurm is not asked beforehand whether it would take them.
    """

    indices: Sequence[int] | None = None
    wanted: RunFilter = field(default_factory=RunFilter)
    cancelled: bool = False
    changed_code: bool = False
    bounded: bool = False
    settings: SettingsOrder | None = None
    unchecked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """What would be submitted again: `attempts` is the number of attempts of each resumed run.

    `views` are those of the selected runs; `auto_resume` is the auto-resume job while Slurm has
    one. `settings` are the settings of runs that continue with others than before.
    """

    launch: Launch
    order: Order
    views: tuple[RunView, ...]
    choice: Choice
    jobs: tuple[JobSpec, ...]
    scripts: dict[int, str]
    attempts: dict[int, int]
    auto_resume: Observation | None
    settings: Mapping[int, NewSettings] = field(default_factory=dict)


def resume(launch: Launch, order: Order, context: Context) -> tuple[Resuming, Started | None]:
    """Submit again what the order allows, under the lock for adding jobs.

    Raises HeldError if another resume holds it, or ranks of an earlier attempt do not end. The
    second value is None if there was nothing to start.
    """
    # Read again: another process may have resumed between the first look and the lock.
    with alone(launch, context) as fresh:
        whole = order.indices is None and order.wanted.all
        fed = _feed(fresh, context) if whole else None
        resuming = prepare_resume(load_launch(fresh.folder), order, context)
        if resuming.jobs:
            await_no_ranks(launch, resuming.choice.resumed, context)
        started = start_resumed(resuming, context) if resuming.jobs else fed
        on_cluster = launch.cluster.kind is ClusterKind.slurm
        if started is not None and on_cluster and resuming.auto_resume is None:
            kept = keep_auto_resume_job(launch, started.main_jobs, context)
            started = replace(started, auto_resume_job=kept)
        return resuming, started


def waits_for_room(launch: Launch) -> bool:
    """Whether, by the record, frozen jobs of the launch are still to be submitted."""
    if launch.cluster.kind is not ClusterKind.slurm:
        return False
    history = read_launch_history(launch)
    meant = [job for job in unconfirmed(launch) if not history.resumed.keys() & set(job.runs)]
    return bool(history.waiting() or meant)


def _feed(launch: Launch, context: Context) -> Started | None:
    """Submit what was left of the launch itself, as far as it fits."""
    if not waits_for_room(launch):
        return None
    commands = slurm_commands(launch.cluster.bin_dir, context)
    jobs, main_jobs, left = feed(launch, commands, context)
    backlog = keep_backlog_job(launch, commands, context) if left else None
    if not main_jobs:
        return None
    return Started(
        launch=load_launch(launch.folder),
        jobs=jobs,
        main_jobs=main_jobs,
        where=on_slurm(main_jobs),
        backlog_job=backlog,
        left=sum(len(job.runs) for job in left),
    )


def prepare_resume(launch: Launch, order: Order, context: Context) -> Resuming:
    """Find what to submit again, and render it; raises any kind of UsageError. Writes nothing."""
    view = launch_view(launch, context, ask=Ask.open_runs, indices=order.indices)
    if view.scheduler is Scheduler.unreachable:
        raise SchedulerAwayError(
            f"the outcome of the runs of {launch.id} is unknown: {view.warning}",
            hint="try again when Slurm answers: what it still has must not be started twice",
        )
    history = read_launch_history(launch)
    known = known_of(view, history)
    meant, stages = order.wanted.chosen(view.runs, launch.id), launch.stages
    choice = choose(meant, known, cancelled=order.cancelled, stages=stages)
    if order.bounded:
        known = replace(known, spent=spent_of(view, choice, history))
        choice = choose(meant, known, cancelled=order.cancelled, stages=stages)
    attempts = {run: latest_attempt(launch.paths.run(run).attempts) for run in choice.resumed}
    settings = new_settings(launch, choice.resumed, order.settings)

    def job_of(run: int) -> JobSpec:
        return with_new_resources(history.job_of(run), settings.get(run))

    # What their first job waited for has been met; what this resume asks for may not.
    asked_anew = {run for run, new in settings.items() if "dependency" in new.resources}
    begun = {run for run, count in attempts.items() if count} - asked_anew
    jobs = _added(launch, choice, job_of, begun)
    if jobs:
        if launch.cluster.kind is not ClusterKind.slurm:
            local.require_executor(context.environ)
        check_snapshot(launch.paths)
        require_installation(launch, context)
    if jobs and not order.changed_code:
        earlier = {history.job_of(run).index: history.job_of(run) for run in choice.resumed}
        check_unchanged(launch, choice.resumed, tuple(earlier.values()), context)
    scripts = {job.index: rendered(launch, job, context) for job in jobs}
    return Resuming(
        launch=launch,
        order=order,
        views=meant,
        choice=choice,
        jobs=jobs,
        scripts=scripts,
        attempts=attempts,
        auto_resume=view.auto_resume,
        settings=settings,
    )


def _added(
    launch: Launch, choice: Choice, job_of: Callable[[int], JobSpec], begun: Collection[int]
) -> tuple[JobSpec, ...]:
    first = len(launch.jobs)
    if launch.stages:
        return added_jobs_of_stages(
            launch.id,
            choice.resumed,
            launch.stages,
            job_of=job_of,
            begun=begun,
            first_index=first,
        )
    return added_jobs(
        launch.id,
        choice.resumed,
        job_of=job_of,
        begun=begun,
        first_index=first,
        lasted=_lasted(launch, choice.resumed),
    )


def _lasted(launch: Launch, runs: Sequence[int]) -> dict[int, timedelta]:
    """Return how long runs have taken so far; empty if that does not decide the order."""
    if not any(job.shared_job for job in launch.jobs):
        return {}
    known = {run: time_taken(launch, run) for run in runs}
    return {run: took for run, took in known.items() if took is not None}


def start_resumed(resuming: Resuming, context: Context) -> Started:
    """Add the jobs to the launch and start them; raises SchedulerError."""
    launch = resuming.launch
    check_resume(resuming, context)
    record_settings(launch, resuming.order.settings, resuming.settings, context)
    if launch.cluster.kind is ClusterKind.slurm:
        return _start_on_slurm(resuming, context)
    for job in resuming.jobs:
        _add(job, resuming, context)
    executor = local.start_executor(launch, context, [job.index for job in resuming.jobs])
    where = on_this_machine(executor)
    return Started(launch=load_launch(launch.folder), jobs={}, main_jobs=(), where=where)


def check_resume(resuming: Resuming, context: Context) -> None:
    """Raise SchedulerRefusedError for what `launch` would refuse; print its warnings."""
    launch, order = resuming.launch, resuming.order
    on_slurm_now = launch.cluster.kind is ClusterKind.slurm and resuming.jobs
    if not on_slurm_now or order.unchecked or order.bounded:
        return
    plan = as_submitted(replace(frozen_plan(launch), jobs=resuming.jobs), context.environ)
    asked = Asked(plan=plan, scripts=resuming.scripts, context=context)
    asked.ask()
    for finding in asked.findings:
        if finding.is_error:
            raise SchedulerRefusedError(
                f"{finding.message}; nothing was recorded or submitted", hint=finding.hint
            )
        context.note(f"{finding.severity}: {finding.message}")


def _start_on_slurm(resuming: Resuming, context: Context) -> Started:
    launch = resuming.launch
    commands = slurm_commands(launch.cluster.bin_dir, context)
    runs: dict[int, str] = {}
    main_jobs: list[str] = []
    for job in resuming.jobs:
        _add(job, resuming, context)
        # One by one: what Slurm accepted continues, and another resume submits the rest.
        submission = submission_of(job, launch, commands, context)
        try:
            runs |= submission.submit()
        except SchedulerError:
            if main_jobs:
                context.note(f"resumed before that: {on_slurm(main_jobs)}; these continue")
            raise
        main_jobs += submission.accepted.values()
    return Started(
        launch=load_launch(launch.folder),
        jobs=runs,
        main_jobs=tuple(main_jobs),
        where=on_slurm(main_jobs),
    )


def _add(job: JobSpec, resuming: Resuming, context: Context) -> None:
    added = JobAdded(
        at=context.now(),
        job=job,
        after=tuple(resuming.attempts[run] for run in job.runs),
        fresh=not resuming.order.bounded,
    )
    add_job(resuming.launch, added, resuming.scripts[job.index])


def what_started(resuming: Resuming, started: Started) -> tuple[str, int]:
    """Return in a word what was done, and to how many runs."""
    if resuming.jobs:
        return "resumed", len(resuming.choice.resumed)
    return "submitted", len(started.jobs)


def left_alone(skipped: Sequence[Skipped]) -> list[str]:
    """Return a line for each reason: the number of runs in each state, or the run if it is one."""
    lines: list[str] = []
    for why in dict.fromkeys(skip.why for skip in skipped):
        alike = [skip for skip in skipped if skip.why == why]
        reason = standing_text(why)
        if len(alike) == 1:
            lines.append(f"{alike[0].run}: {reason}")
            continue
        said = states_text(count_states(skip.state for skip in alike))
        lines.append(said if why.standing is Standing.completed else f"{said}: {reason}")
    return lines


def forecast(resuming: Resuming) -> list[str]:
    """Return what would be resumed and what not, a line for each reason with the runs' indices."""
    left = {skip.index: standing_text(skip.why) for skip in resuming.choice.skipped}
    lines: dict[str, list[int]] = {}
    for view in resuming.views:
        index = view.record.index
        if index in left:
            line = f"left    {{}}: {left[index]}"
        else:
            begins = _resume_words(resuming.launch, view)
            line = f"resume  {{}}: {', '.join(filter(None, (_ended(view), begins)))}"
        lines.setdefault(line, []).append(index)
    return [line.replace("{}", ranges(runs), 1) for line, runs in sorted(lines.items())[::-1]]


def _ended(view: RunView) -> str:
    """Return why a run is resumed: how it ended, or that it never began."""
    cause = failure_cause(view)
    if cause is not None:
        return f"{view.state} ({cause})"
    return "it was never submitted" if view.state is RunState.pending else str(view.state)


def first_steps(resuming: Resuming) -> list[str]:
    """Return from which step the resumed runs continue, a line for each answer."""
    found: dict[str, list[int]] = {}
    if len(resuming.choice.resumed) <= _MOST_READ:
        for view in resuming.views:
            index = view.record.index
            words = _resume_words(resuming.launch, view)
            if index in resuming.choice.resumed and words:
                found.setdefault(words, []).append(index)
    return [f"{ranges(runs)}: {words}" for words, runs in found.items()]


def _resume_words(launch: Launch, view: RunView) -> str:
    """Return from which step a run continues; empty for one that never began."""
    if not view.record.attempt:
        return ""
    return resume_words(launch, view.record.index, stepped=view.record.step is not None)


def skipped_document(skipped: Sequence[Skipped]) -> list[dict[str, object]]:
    """Return the runs that are left alone, as `resume --json` prints them."""
    return [
        {
            **plain_fields(skip, "run index state standing=why.standing"),
            "reason": standing_text(skip.why),
        }
        for skip in skipped
    ]
