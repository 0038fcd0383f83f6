"""The order of a launch: prepared, without known runs, frozen, handed to Slurm or executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import SchedulerError, SchedulerRefusedError, UsageError
from hpckit.model.finding import CheckReport, Finding
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.operations import local
from hpckit.operations.add_job import alone
from hpckit.operations.check import ModelDepth, check_launch
from hpckit.operations.cluster_limits import what_fits
from hpckit.operations.deduplicate import KnownRuns, divide, record_known, without_known
from hpckit.operations.next_step import only_a_view, reference
from hpckit.operations.prepare import Prepared, prepare, with_destinations, write
from hpckit.operations.service_jobs import is_chained, keep_backlog_job, queue_auto_resume_job
from hpckit.operations.started import Started, on_slurm, on_this_machine
from hpckit.operations.submit import Submission, slurm_commands
from hpckit.planning.checks.slips import check_foreground
from hpckit.planning.jobs.service_jobs import SERVICE_HINT, auto_resume_job
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.script import render_script
from hpckit.slurm.site_query import PATIENCE as LIMITS
from hpckit.slurm.test_only import rehearse
from hpckit.values import dataclass, field, replace

_OTHERS = timedelta(minutes=2)
"""How long running supervisors may take to add their successors before a service job is queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How to launch: `checks` says how models are looked at, None that nothing is checked.

    With `rerun` no run of another launch counts as known; with `any_code` those of changed code
    count, too, and with `changed_code` they run again without a question.
    """

    checks: ModelDepth | None = ModelDepth.sure
    rerun: bool = False
    any_code: bool = False
    changed_code: bool = False
    auto_resume: bool = False
    foreground: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """A launch before it is checked: as asked for, and without the runs that are known.

    `left` is None if all runs are known. `scripts` are those of its jobs, by index, and of the
    auto-resume job, whose script has placeholders for Slurm's job ids.
    """

    options: LaunchOptions
    whole: Prepared
    known: KnownRuns
    left: Prepared | None
    scripts: Mapping[int, str] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """Whether runs that completed or are under way would start again, and nobody agreed."""
        return self.known.repeats and not self.options.changed_code


def plan_launch(
    request: ComposeRequest, words: Sequence[str], options: LaunchOptions, context: Context
) -> PlannedLaunch:
    """Prepare a launch and leave out what is known from others; writes and submits nothing.

    `words` are the command line as typed, for the record. Raises HpckitError.

    Example:
        planned = plan_launch(request, words, LaunchOptions(), context)
        if planned.left is not None and not planned.repeats:
            report = check_planned(planned, context)
            started = start_planned(planned.left, planned, context)

    """
    checked = options.checks is not None
    whole = prepare(request, words, context, checked=checked, quiet=options.quiet)
    local.refuse_if_ruled_out(whole.plan.cluster.kind, context.environ)
    if options.foreground:
        check_foreground(whole.plan, request.overrides)
    every = options.foreground or options.rerun  # the user wants to see the run
    known = KnownRuns() if every else divide(whole, context, any_code=options.any_code)
    left = without_known(whole, known, context)
    planned = PlannedLaunch(options=options, whole=whole, known=known, left=left)
    if left is None:
        return planned
    more = {len(left.plan.jobs): _auto_resume_script(left)} if options.auto_resume else {}
    return replace(planned, scripts={**left.scripts, **more})


def check_planned(planned: PlannedLaunch, context: Context) -> CheckReport | None:
    """Return the findings about what is left of a launch; None if nothing is to be checked.

    Raises ConfigError if a notice has no address.
    """
    if planned.left is None:
        return None
    left, depth = with_destinations(planned.left, context), planned.options.checks
    return None if depth is None else check_launch(left, context, models=depth)


def start_planned(left: Prepared, planned: PlannedLaunch, context: Context) -> Started:
    """Start what is left of a planned launch; raises HpckitError.

    SchedulerRefusedError, before anything is written, if Slurm would refuse the auto-resume job.
    """
    options = planned.options
    if options.auto_resume and options.checks is not None:
        _rehearse_auto_resume(left, context)
    return start_launch(left, context, known=planned.known, auto_resume=options.auto_resume)


def _auto_resume_script(prepared: Prepared) -> str:
    """Return the script of the first auto-resume job; raises UsageError if not on Slurm."""
    if prepared.plan.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            "--auto-resume queues a job, and this launch runs on this machine (cluster.kind is "
            f"{prepared.plan.cluster.kind})",
            hint="`hpckit watch` resumes here what can be, for as long as it runs",
        )
    return _first_auto_resume_job(prepared)[1]


def _rehearse_auto_resume(prepared: Prepared, context: Context) -> None:
    """Raise SchedulerRefusedError if Slurm would refuse the auto-resume job.

    Submits nothing. If the job's nodes are only unavailable now, it would wait for them: no error.
    """
    job, text = _first_auto_resume_job(prepared, waits=False)
    bin_dir = prepared.plan.cluster.bin_dir
    commands = SlurmCommands(bin_dir=bin_dir, environ=context.environ, timeout=LIMITS)
    try:
        answer = rehearse(job, text, commands, lambda: None)
    except SchedulerError:
        return
    if isinstance(answer, Finding) and answer.is_error:
        raise SchedulerRefusedError(
            f"Slurm would refuse the job that resumes runs (--auto-resume): {answer.message}; "
            "nothing was written or submitted",
            hint=f"{SERVICE_HINT}; --no-check launches anyway",
        )


def _first_auto_resume_job(prepared: Prepared, *, waits: bool = True) -> tuple[JobSpec, str]:
    """Return the first auto-resume job and its script; without `waits` it depends on no job."""
    plan, jobs = prepared.plan, prepared.plan.jobs
    job = auto_resume_job(
        plan.id,
        index=len(jobs),
        like=jobs[0].resources,
        cluster=plan.cluster,
        after=[f"JOB{job.index}" for job in jobs] if waits else (),
    )
    return job, render_script(plan, job, prepared.templates)


def _with_auto_resume_job(started: Started, context: Context) -> Started:
    """Queue the first auto-resume job; if that raises SchedulerError, the runs continue."""
    launch = started.launch
    try:
        with alone(launch, context, patience=_OTHERS) as fresh:
            job = queue_auto_resume_job(fresh, started.main_jobs, context)
    except SchedulerError as error:
        raise type(error)(
            f"{launch.id} is under way ({started.where}), but nothing will resume it by itself: "
            f"{error.message}",
            hint=f"`hpckit watch {reference(launch, context)}` does, for as long as it runs; "
            f"{SERVICE_HINT}",
        ) from error
    return replace(started, auto_resume_job=job)


def start_launch(
    prepared: Prepared,
    context: Context,
    *,
    known: KnownRuns | None = None,
    auto_resume: bool = False,
    terminal: str | None = None,
) -> Started:
    """Freeze a launch and hand it to Slurm or to the local executor; raises HpckitError.

    Runs that are `known` from other launches are recorded. With `auto_resume` (Slurm only), a small
    job resumes runs when all have ended. `terminal` is the device of a run in the foreground.
    """
    if prepared.plan.cluster.kind is not ClusterKind.slurm:
        local.require_executor(context.environ)
        launch = write(prepared, context)
        with only_a_view(launch, context):
            executor = local.start_executor(launch, context, terminal=terminal)
        started = Started(launch=launch, jobs={}, main_jobs=(), where=on_this_machine(executor))
    else:
        started = _start_on_slurm(prepared, context)
        if started.left:
            started = _with_backlog_job(started, context)
        if auto_resume:
            started = _with_auto_resume_job(started, context)
    if known is not None:
        record_known(known, started.launch, context)
    return started


def _start_on_slurm(prepared: Prepared, context: Context) -> Started:
    commands = slurm_commands(prepared.plan.cluster.bin_dir, context)
    launch = write(prepared, context)
    first: Sequence[JobSpec] = launch.jobs
    if len(first) > 1:  # those that fit into the queue; the first job is always tried
        first = what_fits(first, commands, context.heard) or first[:1]
    submission = Submission(
        launch=launch,
        jobs=first,
        new=True,
        may_wait=True,
        chained=len(launch.jobs) > 1 and is_chained(launch),
        quiet=prepared.quiet,
        commands=commands,
        context=context,
    )
    jobs = submission.submit()
    main_jobs = tuple(submission.accepted.values())
    left = len(launch.runs) - len(jobs)
    return Started(
        launch=submission.launch,
        jobs=jobs,
        main_jobs=main_jobs,
        where=on_slurm(main_jobs),
        left=left,
    )


def _with_backlog_job(started: Started, context: Context) -> Started:
    """Queue the job that submits the rest; if that fails, print a warning: the runs continue."""
    launch = started.launch
    try:
        commands = slurm_commands(launch.cluster.bin_dir, context)
        with alone(launch, context, patience=_OTHERS) as fresh:
            return replace(started, backlog_job=keep_backlog_job(fresh, commands, context))
    except SchedulerError as error:
        context.note(
            f"warning: nothing will submit the other {started.left} runs by itself: "
            f"{error.message}\n  `hpckit watch {reference(launch, context)}` does, for as long as "
            "it runs"
        )
        return started
