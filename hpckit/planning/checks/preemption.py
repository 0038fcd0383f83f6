"""What becomes of a launch's jobs if they are preempted, and who starts their runs again. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hpckit.model.cluster.preemption import (
    BY_QOS,
    Preemption,
    PreemptMode,
    preemption_of_job,
    restarts_preempted,
)
from hpckit.model.cluster.site import Site
from hpckit.model.finding import Finding, warning
from hpckit.model.plan import JobSpec, LaunchPlan
from hpckit.planning.checks.limits import chosen_of, job_qos, partition_names


def preemption_lines(plan: LaunchPlan, site: Site) -> tuple[str, ...]:
    """Return one line for each partition or QOS whose jobs are preempted, or may be."""
    lines = (
        f"{name}: {_words(found)}: {_starter(job, found)}"
        for job, name, found in _treated(plan, site)
        if found.mode is not PreemptMode.off
    )
    return tuple(dict.fromkeys(lines))


def preemption_findings(plan: LaunchPlan, site: Site) -> Iterator[Finding]:
    """Yield a warning where a preemption leaves less time than ranks are given to save."""
    wait = None if site.settings is None else site.settings.kill_wait
    wished = max(run.settings.runtime.notice_grace_s for run in plan.checked_runs)
    for name, found in {name: found for _, name, found in _treated(plan, site)}.items():
        ends = found.mode in {PreemptMode.cancel, PreemptMode.requeue}
        if not ends or found.grace is None or wait is None:
            continue
        left_s = (found.grace + wait).total_seconds()
        if left_s < wished:
            yield warning(
                "runtime.notice_grace_s",
                wished,
                f"{name}: a preempted job is killed {left_s:g} s after its notice, and ranks are "
                f"given {wished:g} s to save",
                "save often (checkpoint.interval_min): what was done since the last save may be "
                "lost",
            )


def _treated(plan: LaunchPlan, site: Site) -> Iterator[tuple[JobSpec, str, Preemption]]:
    """Yield each job with each partition it may start in, or its QOS, and its preemption there."""
    settings = site.settings
    if settings is None or not settings.preempt_type:
        return
    for job in plan.jobs:
        chosen = chosen_of(job.resources)
        for partition in partition_names(site, chosen):
            qos, place = job_qos(site, chosen, partition), (site.partitions or {}).get(partition)
            by_qos = settings.preempt_type == BY_QOS
            found = preemption_of_job(
                settings.preempt_type,
                settings.preempt_mode,
                None if place is None else place.preemption,
                (site.qos_preemption or {}).get(qos),
            )
            yield job, f"QOS {qos}" if by_qos else f"partition {partition}", found


def _words(found: Preemption) -> str:
    if found.mode is PreemptMode.unknown:
        return "how jobs are preempted is not known"
    grace = found.grace or timedelta()
    known = "" if found.grace is None else f", GraceTime={grace.total_seconds():g}"
    return f"PreemptMode={found.mode}{known}"


def _starter(job: JobSpec, found: Preemption) -> str:
    if found.mode is PreemptMode.suspend:
        return "a preempted run stands still, and continues by itself"
    if not job.requeue:
        return "nothing starts a preempted run again (recovery.requeue)"
    slurm = restarts_preempted(found.mode, requeueable=True)
    return "Slurm requeues a preempted run" if slurm else "hpckit requeues a preempted run itself"
