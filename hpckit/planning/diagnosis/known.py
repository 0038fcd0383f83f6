"""What is known of a run without telemetry: its account, and what it asked for. Pure."""

from __future__ import annotations

from datetime import timedelta

from hpckit.model.cluster.gpus_asked import gpus_of
from hpckit.model.goodput import Goodput
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.report import LayoutReport
from hpckit.model.plan import ResourceSpec
from hpckit.planning.diagnosis.evidence import RunAllocation, RunSettings, TimeShares

_GB = 1e9


def time_shares(account: Goodput) -> TimeShares:
    """Return where the time of a run went, from its account."""
    parts, measured = account.parts, account.measured
    failures = sum(account.failures.values())
    return TimeShares(
        running_s=parts.running.total_seconds(),
        productive_s=parts.productive.total_seconds(),
        checkpoint_s=parts.checkpoint.total_seconds(),
        start_s=parts.start.total_seconds(),
        restart_s=parts.restart.total_seconds(),
        unnoticed_s=failures * (_seconds(measured.detection) or 0.0),
        redone_s=parts.lost.total_seconds(),
        queue_s=parts.queue.total_seconds(),
        saves=account.saves,
        save_s=_seconds(measured.stall),
        interval_s=_seconds(measured.interval),
        mtbf_s=_seconds(measured.mtbf),
        failures={cause.value: count for cause, count in account.failures.items()},
        planned=sum(account.planned.values()),
    )


def run_allocation(
    asked: ResourceSpec, account: Goodput | None, *, completed: bool
) -> RunAllocation:
    """Return what a run asked of Slurm, and how long it took if it has `completed`.

    No attempt of it can have taken longer than all of them together.
    """
    took = account.parts.running.total_seconds() if account is not None and completed else None
    return RunAllocation(
        nodes=asked.allocated_nodes,
        gpus=gpus_of(asked),
        cpus_per_node=asked.tasks_per_node * asked.cpus_per_task,
        memory_bytes_per_node=None if asked.mem_gb is None else int(asked.mem_gb * _GB),
        time_limit_s=_seconds(asked.timeout),
        longest_attempt_s=took,
    )


def run_settings(run: str, settings: LaunchConfig, reported: LayoutReport | None) -> RunSettings:
    """Return what remedies for a run depend on; `reported` is what ranks say of their layout."""
    return RunSettings(
        run=run,
        interval_steps=settings.checkpoint.interval_steps,
        interval_min=settings.checkpoint.interval_min,
        spare_nodes=settings.resources.spare_nodes,
        local=settings.cluster.kind is ClusterKind.local,
        layout=None if reported is None else reported.layout,
    )


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
