"""Submits failed or missing runs again, into the same run folders, from what was frozen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import SchedulerAwayError, SchedulerError, SchedulerRefusedError
from hpckit.model.counted import format_ranges
from hpckit.model.events import JobAdded
from hpckit.model.launch import ClusterKind
from hpckit.model.plain import attributes_to_json
from hpckit.model.plan import JobSpec
from hpckit.model.run import Observation, RunView
from hpckit.model.states import RunState, Standing
from hpckit.operations import local
from hpckit.operations.add_job import lock_launch_for_adding_jobs, record_added_job
from hpckit.operations.checkpoints import describe_resume_step
from hpckit.operations.frozen_script import rebuild_plan_without_runs, render_frozen_script
from hpckit.operations.growth import find_growth_of_ended_runs
from hpckit.operations.new_settings import (
    NewSettings,
    SettingsOrder,
    apply_new_resources,
    compute_new_settings,
    record_new_settings,
)
from hpckit.operations.resumable import (
    find_runs_over_restart_budget,
    find_unsubmitted_runs,
    refuse_if_frozen_files_changed,
    refuse_missing_installation,
)
from hpckit.operations.service_jobs import (
    ensure_backlog_job,
    renew_auto_resume_job,
    submit_unsubmitted_jobs_that_fit,
)
from hpckit.operations.slurm_check import Asked, apply_sbatch_variables
from hpckit.operations.started import Started, describe_local_executor, describe_slurm_jobs
from hpckit.operations.submit import build_job_submission, require_slurm_commands
from hpckit.planning.recovery.resume import (
    Choice,
    Skipped,
    build_resumed_jobs,
    build_resumed_stage_jobs,
    choose_runs_to_resume,
)
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.durations import sum_attempt_durations
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.record.snapshot.changes import check_snapshot_exists
from hpckit.report.pending import format_resume_decision
from hpckit.report.rows import count_runs_by_state
from hpckit.report.run_filter import RunFilter, find_failure_cause
from hpckit.report.text import format_state_counts
from hpckit.values import dataclass, field, replace
from hpckit.views.launch_view import Ask, build_launch_view, list_unconfirmed_jobs
from hpckit.views.living_ranks import ensure_no_living_ranks
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


def resume_runs(launch: Launch, order: Order, context: Context) -> tuple[Resuming, Started | None]:
    """Submit again what the order allows, under the lock for adding jobs.

    Raises HeldError if another resume holds it, or ranks of an earlier attempt do not end. The
    second value is None if there was nothing to start.
    """
    # Read again: another process may have resumed between the first look and the lock.
    with lock_launch_for_adding_jobs(launch, context) as fresh:
        whole = order.indices is None and order.wanted.takes_all_runs
        fed = _submit_backlog(fresh, context) if whole else None
        resuming = prepare_resume(load_launch(fresh.folder), order, context)
        if resuming.jobs:
            ensure_no_living_ranks(launch, resuming.choice.resumed, context)
        started = start_resumed_runs(resuming, context) if resuming.jobs else fed
        on_cluster = launch.cluster.kind is ClusterKind.slurm
        if started is not None and on_cluster and resuming.auto_resume is None:
            kept = renew_auto_resume_job(launch, started.main_jobs, context)
            started = replace(started, auto_resume_job=kept)
        return resuming, started


def has_unsubmitted_jobs(launch: Launch) -> bool:
    """Whether, by the record, frozen jobs of the launch are still to be submitted."""
    if launch.cluster.kind is not ClusterKind.slurm:
        return False
    history = read_launch_history(launch)
    meant = [job for job in list_unconfirmed_jobs(launch) if not history.resumed.keys() & set(job.runs)]
    return bool(history.list_unsubmitted_jobs() or meant)


def _submit_backlog(launch: Launch, context: Context) -> Started | None:
    if not has_unsubmitted_jobs(launch):
        return None
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    jobs, main_jobs, left = submit_unsubmitted_jobs_that_fit(launch, commands, context)
    backlog = ensure_backlog_job(launch, commands, context) if left else None
    if not main_jobs:
        return None
    return Started(
        launch=load_launch(launch.folder),
        jobs=jobs,
        main_jobs=main_jobs,
        where=describe_slurm_jobs(main_jobs),
        backlog_job=backlog,
        left=sum(len(job.runs) for job in left),
    )


def prepare_resume(launch: Launch, order: Order, context: Context) -> Resuming:
    """Find what to submit again, and render it; raises any kind of UsageError. Writes nothing."""
    view = build_launch_view(launch, context, ask=Ask.open_runs, indices=order.indices)
    if view.scheduler is Scheduler.unreachable:
        raise SchedulerAwayError(
            f"the outcome of the runs of {launch.id} is unknown: {view.warning}",
            hint="try again when Slurm answers: runs that it still has must not start twice",
        )
    history = read_launch_history(launch)
    known = find_unsubmitted_runs(view, history)
    meant, stages = order.wanted.select_runs(view.runs, launch.id), launch.stages
    choice = choose_runs_to_resume(meant, known, cancelled=order.cancelled, stages=stages)
    if order.bounded:
        known = replace(known, spent=find_runs_over_restart_budget(view, choice, history))
        choice = choose_runs_to_resume(meant, known, cancelled=order.cancelled, stages=stages)
    attempts = {run: latest_attempt_number(launch.paths.run(run).attempts) for run in choice.resumed}
    again = [run for run in meant if run.record.index in choice.resumed]
    words = () if order.settings is None else order.settings.words
    grown = find_growth_of_ended_runs(launch, again, history, words, context)
    settings = compute_new_settings(launch, choice.resumed, order.settings, grown)

    def job_of(run: int) -> JobSpec:
        return apply_new_resources(history.find_latest_job_of_run(run), settings.get(run))

    # What their first job waited for has been met; what this resume asks for may not.
    asked_anew = {run for run, new in settings.items() if "dependency" in new.resources}
    begun = {run for run, count in attempts.items() if count} - asked_anew
    jobs = _build_jobs_for_resumed_runs(launch, choice, job_of, begun)
    if jobs:
        if launch.cluster.kind is not ClusterKind.slurm:
            local.check_local_runs_possible(context.environ)
        check_snapshot_exists(launch.paths)
        refuse_missing_installation(launch, context)
    if jobs and not order.changed_code:
        earlier = {history.find_job_of_run(run).index: history.find_job_of_run(run) for run in choice.resumed}
        refuse_if_frozen_files_changed(launch, choice.resumed, tuple(earlier.values()), context)
    scripts = {job.index: render_frozen_script(launch, job, context) for job in jobs}
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


def _build_jobs_for_resumed_runs(
    launch: Launch, choice: Choice, job_of: Callable[[int], JobSpec], begun: Collection[int]
) -> tuple[JobSpec, ...]:
    first = len(launch.jobs)
    if launch.stages:
        return build_resumed_stage_jobs(
            launch.id, choice.resumed, launch.stages, job_of=job_of, begun=begun, first_index=first
        )
    return build_resumed_jobs(
        launch.id,
        choice.resumed,
        job_of=job_of,
        begun=begun,
        first_index=first,
        lasted=_read_run_durations(launch, choice.resumed),
    )


def _read_run_durations(launch: Launch, runs: Sequence[int]) -> dict[int, timedelta]:
    """Return how long runs have taken so far; empty if that does not decide the order."""
    if not any(job.shared_job for job in launch.jobs):
        return {}
    known = {run: sum_attempt_durations(launch, run) for run in runs}
    return {run: took for run, took in known.items() if took is not None}


def start_resumed_runs(resuming: Resuming, context: Context) -> Started:
    """Add the jobs to the launch and start them; raises SchedulerError."""
    launch = resuming.launch
    check_resume_accepted(resuming, context)
    record_new_settings(launch, resuming.order.settings, resuming.settings, context)
    if launch.cluster.kind is ClusterKind.slurm:
        return _resume_on_slurm(resuming, context)
    for job in resuming.jobs:
        _add_resumed_job(job, resuming, context)
    executor = local.start_local_executor(launch, context, [job.index for job in resuming.jobs])
    where = describe_local_executor(executor)
    return Started(launch=load_launch(launch.folder), jobs={}, main_jobs=(), where=where)


def check_resume_accepted(resuming: Resuming, context: Context) -> None:
    """Raise SchedulerRefusedError for what `launch` would refuse; print its warnings."""
    launch, order = resuming.launch, resuming.order
    on_slurm_now = launch.cluster.kind is ClusterKind.slurm and resuming.jobs
    if not on_slurm_now or order.unchecked or order.bounded:
        return
    plan = apply_sbatch_variables(
        replace(rebuild_plan_without_runs(launch), jobs=resuming.jobs), context.environ
    )
    asked = Asked(plan=plan, scripts=resuming.scripts, context=context)
    asked.ask_slurm()
    for finding in asked.findings:
        if finding.is_error:
            raise SchedulerRefusedError(
                f"{finding.message}; nothing was recorded or submitted", hint=finding.hint
            )
        context.note(f"{finding.severity}: {finding.message}")


def _resume_on_slurm(resuming: Resuming, context: Context) -> Started:
    launch = resuming.launch
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    runs: dict[int, str] = {}
    main_jobs: list[str] = []
    for job in resuming.jobs:
        _add_resumed_job(job, resuming, context)
        # One by one: what Slurm accepted continues, and another resume submits the rest.
        submission = build_job_submission(job, launch, commands, context)
        try:
            runs |= submission.submit()
        except SchedulerError:
            if main_jobs:
                context.note(f"already resumed: {describe_slurm_jobs(main_jobs)}; these continue")
            raise
        main_jobs += submission.accepted.values()
    return Started(
        launch=load_launch(launch.folder),
        jobs=runs,
        main_jobs=tuple(main_jobs),
        where=describe_slurm_jobs(main_jobs),
    )


def _add_resumed_job(job: JobSpec, resuming: Resuming, context: Context) -> None:
    added = JobAdded(
        at=context.now(),
        job=job,
        after=tuple(resuming.attempts[run] for run in job.runs),
        fresh=not resuming.order.bounded,
    )
    record_added_job(resuming.launch, added, resuming.scripts[job.index])


def describe_started_runs(resuming: Resuming, started: Started) -> tuple[str, int]:
    """Return in a word what was done, and to how many runs."""
    if resuming.jobs:
        return "resumed", len(resuming.choice.resumed)
    return "submitted", len(started.jobs)


def format_skipped_runs(skipped: Sequence[Skipped]) -> list[str]:
    """Return a line for each reason: the number of runs in each state, or the run if it is one."""
    lines: list[str] = []
    for why in dict.fromkeys(skip.why for skip in skipped):
        alike = [skip for skip in skipped if skip.why == why]
        reason = format_resume_decision(why)
        if len(alike) == 1:
            lines.append(f"{alike[0].run}: {reason}")
            continue
        said = format_state_counts(count_runs_by_state(skip.state for skip in alike))
        lines.append(said if why.standing is Standing.completed else f"{said}: {reason}")
    return lines


def format_resume_forecast(resuming: Resuming) -> list[str]:
    """Return what would be resumed and what not, a line for each reason with the runs' indices."""
    left = {skip.index: format_resume_decision(skip.why) for skip in resuming.choice.skipped}
    lines: dict[str, list[int]] = {}
    for view in resuming.views:
        index = view.record.index
        if index in left:
            line = f"left    {{}}: {left[index]}"
        else:
            begins = _describe_resume_step(resuming.launch, view)
            line = f"resume  {{}}: {', '.join(filter(None, (_describe_why_run_is_resumed(view), begins)))}"
        lines.setdefault(line, []).append(index)
    return [line.replace("{}", format_ranges(runs), 1) for line, runs in sorted(lines.items())[::-1]]


def _describe_why_run_is_resumed(view: RunView) -> str:
    """Return why a run is resumed: how it ended, or that it never began."""
    cause = find_failure_cause(view)
    if cause is not None:
        return f"{view.state} ({cause})"
    return "it was never submitted" if view.state is RunState.pending else str(view.state)


def format_resume_steps(resuming: Resuming) -> list[str]:
    """Return from which step the resumed runs continue, a line for each answer."""
    found: dict[str, list[int]] = {}
    if len(resuming.choice.resumed) <= _MOST_READ:
        for view in resuming.views:
            index = view.record.index
            words = _describe_resume_step(resuming.launch, view)
            if index in resuming.choice.resumed and words:
                found.setdefault(words, []).append(index)
    return [f"{format_ranges(runs)}: {words}" for words, runs in found.items()]


def _describe_resume_step(launch: Launch, view: RunView) -> str:
    """Return from which step a run continues; empty for one that never began."""
    if not view.record.attempt:
        return ""
    return describe_resume_step(launch, view.record.index, stepped=view.record.step is not None)


def skipped_runs_to_json(skipped: Sequence[Skipped]) -> list[dict[str, object]]:
    """Return the runs that are left alone, as `resume --json` prints them."""
    return [
        {
            **attributes_to_json(skip, "run index state standing=why.standing"),
            "reason": format_resume_decision(skip.why),
        }
        for skip in skipped
    ]
