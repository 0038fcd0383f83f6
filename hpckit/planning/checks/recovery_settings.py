"""Whether the settings about failures are consistent: recovery, time limits, planned faults.

Refuses at launch what would otherwise be ignored, or end a run hours later, without looking at the
machine or the cluster. Every refusal names the key, its value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from hpckit.errors import ConfigError
from hpckit.model.failure import Cause
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.planning.faults import plan_faults

RESTARTABLE = tuple(cause for cause in Cause if cause not in {Cause.frozen_folder, Cause.scheduler})
"""Causes after which a run can be started again: a damaged folder or a refused job will not
improve."""


def check_recovery(settings: LaunchConfig) -> None:
    """Raise ConfigError if recovery, time limits or planned faults are not consistent."""
    plan_faults(settings.chaos)
    for name, count in settings.recovery.restarts.items():
        _check_restarts(name, count)
    for key, value, least, example in _least(settings):
        # The negated comparison also refuses nan.
        if not value >= least:
            raise ConfigError(
                f"{key} is {value:g}; it has to be at least {least}",
                hint=f"for example {key}={example}",
            )
    if not settings.runtime.hang_first_s > 0:
        raise ConfigError(
            f"runtime.hang_first_s is {settings.runtime.hang_first_s:g}; it has to be more than 0",
            hint="for example runtime.hang_first_s=1800; runtime.hang_min_s=0 turns this off",
        )
    _check_lead(settings)


def _check_restarts(name: str, count: int) -> None:
    causes = [cause.value for cause in RESTARTABLE]
    if name not in causes:
        near = difflib.get_close_matches(name, causes, n=1)
        raise ConfigError(
            f"recovery.restarts: {name!r} is not a restartable cause; those are "
            f"{', '.join(causes)}",
            hint=f"did you mean recovery.restarts.{near[0]}?"
            if near
            else "leave it out, or name one of those",
        )
    if count < 0:
        raise ConfigError(
            f"recovery.restarts.{name} is {count}; it has to be at least 0",
            hint=f"recovery.restarts.{name}=0 never starts a run again after that",
        )


def _least(settings: LaunchConfig) -> Iterator[tuple[str, float, int, int]]:
    """Yield keys with their value, the lowest allowed value, and a sensible one."""
    recovery, runtime = settings.recovery, settings.runtime
    yield "recovery.backoff_s", recovery.backoff_s, 0, 1
    yield "recovery.max_backoff_s", recovery.max_backoff_s, 0, 60
    yield "recovery.nan_patience", recovery.nan_patience, 0, 100
    # Agents send a sign of life once a second: with less, every hiccup would be a lost node.
    yield "runtime.node_timeout_s", runtime.node_timeout_s, 2, 6
    yield "runtime.hang_min_s", runtime.hang_min_s, 0, 300
    yield "runtime.hang_factor", runtime.hang_factor, 1, 10
    yield "runtime.save_before_timeout_s", runtime.save_before_timeout_s, 0, 60
    yield "runtime.drain_poll_interval_s", runtime.drain_poll_interval_s, 0, 300


def _check_lead(settings: LaunchConfig) -> None:
    """Refuse a run that would leave ahead of its time limit as soon as it has begun."""
    minutes, lead = settings.resources.timeout_min, settings.runtime.save_before_timeout_s
    if settings.cluster.kind is ClusterKind.local or minutes is None or lead < minutes * 60:
        return
    raise ConfigError(
        f"resources.timeout_min is {minutes}, and runtime.save_before_timeout_s is "
        f"{lead:g}: the run would save and leave as soon as it began",
        hint="ask for more time, or leave later: "
        f"runtime.save_before_timeout_s={minutes * 60 // 4} (0: only when Slurm says so)",
    )
