"""The order of a launch: prepared, without known runs, frozen, handed to Slurm or executor."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import HeldError, SchedulerError, SchedulerRefusedError, UsageError
from hpckit.model.events import SubmitIntended
from hpckit.model.finding import CheckReport, Finding
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.operations import local
from hpckit.operations.add_job import hold_lock_with_patience, lock_launch_for_adding_jobs
from hpckit.operations.check import ModelDepth, check_launch
from hpckit.operations.cluster_limits import ask_which_jobs_fit_queue
from hpckit.operations.deduplicate import (
    drop_already_launched_runs,
    find_already_launched_runs,
    record_replacing_runs,
)
from hpckit.operations.known_runs import KnownRuns
from hpckit.operations.next_step import launch_reference, say_runs_continue_on_ctrl_c
from hpckit.operations.prepare import Prepared, add_notice_destinations, prepare_launch, write_launch_folder
from hpckit.operations.service_jobs import are_arrays_chained, ensure_backlog_job, queue_auto_resume_job
from hpckit.operations.started import Started, describe_local_executor, describe_slurm_jobs
from hpckit.operations.submit import Submission, require_slurm_commands
from hpckit.planning.checks.slips import check_foreground_launch
from hpckit.planning.jobs.service_jobs import SERVICE_HINT, build_auto_resume_job
from hpckit.record.freeze import remove_launch_folder
from hpckit.record.launch_events import read_merged_events
from hpckit.record.layout import LaunchPaths
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.script import render_batch_script
from hpckit.slurm.site_query import PATIENCE as LIMITS
from hpckit.slurm.test_only import dry_run_sbatch
from hpckit.values import dataclass, field, replace

_OTHERS = timedelta(minutes=2)
"""How long running supervisors may take to add their successors before a service job is queued."""
_STARTING = timedelta(minutes=5)
"""How long a launch waits for another one of the same runs that is being submitted."""


class RunsStartedMeanwhileError(UsageError):
    """Another launch has started runs of a planned one, which has to be planned again."""


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
    auto-resume job, whose script has placeholders for Slurm's job ids. `others` are the names in the folder
    of launches before known runs were looked for.
    """

    request: ComposeRequest
    words: Sequence[str]
    options: LaunchOptions
    others: frozenset[str]
    whole: Prepared
    known: KnownRuns
    left: Prepared | None
    scripts: Mapping[int, str] = field(default_factory=dict)

    @property
    def would_repeat_runs(self) -> bool:
        """Whether runs that completed or are under way would start again, and nobody agreed."""
        return self.known.would_repeat_runs and not self.options.changed_code


def plan_launch(
    request: ComposeRequest, words: Sequence[str], options: LaunchOptions, context: Context
) -> PlannedLaunch:
    """Prepare a launch and leave out what is known from others; writes and submits nothing.

    `words` are the command line as typed, for the record. Raises HpckitError.

    Example:
        planned = plan_launch(request, words, LaunchOptions(), context)
        if planned.left is not None and not planned.repeats:
            report = check_planned_launch(planned, context)
            started = start_planned_launch(planned.left, planned, context)

    """
    checked = options.checks is not None
    whole = prepare_launch(request, words, context, checked=checked, quiet=options.quiet)
    local.refuse_forbidden_local_runs(whole.plan.cluster.kind, context.environ)
    if options.foreground:
        check_foreground_launch(whole.plan, request.overrides)
    others = _list_launch_names(whole)
    every = options.foreground or options.rerun  # the user wants to see the run
    known = KnownRuns() if every else find_already_launched_runs(whole, context, any_code=options.any_code)
    left = drop_already_launched_runs(whole, known, context)
    planned = PlannedLaunch(
        request=request, words=words, options=options, others=others, whole=whole, known=known, left=left
    )
    if left is None:
        return planned
    more = {len(left.plan.jobs): _render_auto_resume_script(left)} if options.auto_resume else {}
    return replace(planned, scripts={**left.scripts, **more})


def check_planned_launch(planned: PlannedLaunch, context: Context) -> CheckReport | None:
    """Return the findings about what is left of a launch; None if nothing is to be checked.

    Raises ConfigError if a notice has no address.
    """
    if planned.left is None:
        return None
    left, depth = add_notice_destinations(planned.left, context), planned.options.checks
    return None if depth is None else check_launch(left, context, models=depth)


def start_planned_launch(left: Prepared, planned: PlannedLaunch, context: Context) -> Started:
    """Start what is left of a planned launch; raises HpckitError.

    SchedulerRefusedError, before anything is written, if Slurm would refuse the auto-resume job.
    RunsStartedMeanwhileError if runs of it have been started since it was planned.
    """
    options = planned.options
    if options.auto_resume and options.checks is not None:
        _dry_run_auto_resume_job(left, context)
    with contextlib.ExitStack() as stack:
        if not options.rerun:
            lock = _build_lock_path(planned.whole)
            stack.enter_context(_exclude_launches_of_same_runs(lock, context))
            _refuse_runs_started_meanwhile(planned, lock, context)
        return start_launch(left, context, known=planned.known, auto_resume=options.auto_resume)


@contextlib.contextmanager
def _exclude_launches_of_same_runs(lock: Path, context: Context) -> Iterator[None]:
    """Hold the lock of these very runs until they are submitted: then others find them."""
    missing = [folder for folder in lock.parents if not folder.exists()]
    held = hold_lock_with_patience(lock, "is starting the same runs", context, _STARTING, passing=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held)
        except HeldError:
            raise
        except UsageError:
            pass  # it cannot be written: what writes the launch there says so better
        try:
            yield
        finally:
            stack.close()
            with contextlib.suppress(OSError):  # not empty: it is launched
                for folder in missing:
                    folder.rmdir()


def _refuse_runs_started_meanwhile(planned: PlannedLaunch, lock: Path, context: Context) -> None:
    whole = planned.whole
    others = _list_launch_names(whole) - planned.others
    if lock.name not in planned.others and all(name.startswith(".") for name in others):
        return
    known = find_already_launched_runs(whole, context, any_code=planned.options.any_code)
    now, then = (
        (one.indices_to_launch(whole.plan.runs), one.would_repeat_runs) for one in (known, planned.known)
    )
    if now != then:
        raise RunsStartedMeanwhileError(
            "another launch has started some of these runs; nothing was launched", hint="launch again"
        )


def _build_lock_path(prepared: Prepared) -> Path:
    signatures = "\n".join(sorted(run.signature for run in prepared.plan.runs))
    name = hashlib.sha256(signatures.encode()).hexdigest()[:16]
    return Path(prepared.plan.folder).parent / f".{name}.starting"


def _list_launch_names(prepared: Prepared) -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in Path(prepared.plan.folder).parent.iterdir())
    return frozenset()


def _render_auto_resume_script(prepared: Prepared) -> str:
    """Return the script of the first auto-resume job; raises UsageError if not on Slurm."""
    if prepared.plan.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            "--auto-resume queues a job, and this launch runs on this machine (cluster.kind is "
            f"{prepared.plan.cluster.kind})",
            hint="`hpckit watch` resumes runs here, for as long as it is running",
        )
    return _build_auto_resume_job(prepared)[1]


def _dry_run_auto_resume_job(prepared: Prepared, context: Context) -> None:
    """Raise SchedulerRefusedError if Slurm would refuse the auto-resume job.

    Submits nothing. If the job's nodes are only unavailable now, it would wait for them: no error.
    """
    job, text = _build_auto_resume_job(prepared, waits=False)
    bin_dir = prepared.plan.cluster.bin_dir
    commands = SlurmCommands(bin_dir=bin_dir, environ=context.environ, timeout=LIMITS)
    try:
        answer = dry_run_sbatch(job, text, commands, lambda: None)
    except SchedulerError:
        return
    if isinstance(answer, Finding) and answer.is_error:
        raise SchedulerRefusedError(
            f"Slurm would refuse the job that resumes runs (--auto-resume): {answer.message}; "
            "nothing was written or submitted",
            hint=f"{SERVICE_HINT}; --no-check launches anyway",
        )


def _build_auto_resume_job(prepared: Prepared, *, waits: bool = True) -> tuple[JobSpec, str]:
    """Return the first auto-resume job and its script; without `waits` it depends on no job."""
    plan, jobs = prepared.plan, prepared.plan.jobs
    job = build_auto_resume_job(
        plan.id,
        index=len(jobs),
        like=jobs[0].resources,
        cluster=plan.cluster,
        after=[f"JOB{job.index}" for job in jobs] if waits else (),
    )
    return job, render_batch_script(plan, job, prepared.templates)


def _queue_auto_resume_job(started: Started, context: Context) -> Started:
    """Queue the first auto-resume job; if that raises SchedulerError, the runs continue."""
    launch = started.launch
    try:
        with lock_launch_for_adding_jobs(launch, context, patience=_OTHERS) as fresh:
            job = queue_auto_resume_job(fresh, started.main_jobs, context)
    except SchedulerError as error:
        raise type(error)(
            f"{launch.id} is under way ({started.where}), but nothing will resume it by itself: "
            f"{error.message}",
            hint=f"`hpckit watch {launch_reference(launch, context)}` does, for as long as it "
            f"runs; {SERVICE_HINT}",
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
        local.check_local_runs_possible(context.environ)
        with _undo_at_ctrl_c(prepared, context):
            launch = write_launch_folder(prepared, context)
        with say_runs_continue_on_ctrl_c(launch, context):
            executor = local.start_local_executor(launch, context, terminal=terminal)
        started = Started(launch=launch, jobs={}, main_jobs=(), where=describe_local_executor(executor))
    else:
        started = _start_launch_on_slurm(prepared, context)
        if started.left:
            started = _queue_backlog_job(started, context)
        if auto_resume:
            started = _queue_auto_resume_job(started, context)
    if known is not None:
        record_replacing_runs(known, started.launch, context)
    return started


def _start_launch_on_slurm(prepared: Prepared, context: Context) -> Started:
    commands = require_slurm_commands(prepared.plan.cluster.bin_dir, context)
    first: Sequence[JobSpec] = prepared.plan.jobs
    if len(first) > 1:  # those that fit into the queue; the first job is always tried
        first = ask_which_jobs_fit_queue(first, commands, context.heard) or first[:1]
    with _undo_at_ctrl_c(prepared, context):
        launch = write_launch_folder(prepared, context)
        submission = Submission(
            launch=launch,
            jobs=first,
            new=True,
            may_wait=True,
            chained=len(launch.jobs) > 1 and are_arrays_chained(launch),
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
        where=describe_slurm_jobs(main_jobs),
        left=left,
    )


@contextlib.contextmanager
def _undo_at_ctrl_c(prepared: Prepared, context: Context) -> Iterator[None]:
    """After Ctrl-C leave nothing that was not submitted, and say what may have been."""
    try:
        yield
    except KeyboardInterrupt:
        paths = LaunchPaths(Path(prepared.plan.folder))
        if any(isinstance(event, SubmitIntended) for event in read_merged_events(paths)):
            context.note(f"interrupted; `hpckit doctor {paths.folder.name}` finds what Slurm has accepted")
        else:
            if paths.folder.exists():
                remove_launch_folder(paths.folder)
            context.note("interrupted; nothing was launched")
        raise


def _queue_backlog_job(started: Started, context: Context) -> Started:
    """Queue the job that submits the rest; if that fails, print a warning: the runs continue."""
    launch = started.launch
    try:
        commands = require_slurm_commands(launch.cluster.bin_dir, context)
        with lock_launch_for_adding_jobs(launch, context, patience=_OTHERS) as fresh:
            return replace(started, backlog_job=ensure_backlog_job(fresh, commands, context))
    except SchedulerError as error:
        context.note(
            f"warning: nothing will submit the other {started.left} runs by itself: "
            f"{error.message}\n  `hpckit watch {launch_reference(launch, context)}` does, for as "
            "long as it runs"
        )
        return started
