"""What values of a configuration may be, each by itself. Pure."""

from __future__ import annotations

import math
import sys
from operator import attrgetter

from hpckit.errors import ConfigError
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.profile import MOST_STEPS
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

LONGEST_ROW_S = 3600.0
"""Longer rows would say nothing of a day, and a total is written after some rows only."""

MOST_MB = 1e6
"""A terabyte: more than a year of any node."""

_LARGEST_SEED = 2**32 - 1
"""numpy takes no larger one."""

_REAL = sys.float_info.max
"""As the largest number that is allowed: refuses infinity."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A key's least number, or with `above` what it has to exceed, and the largest.

    `usual` is a sensible one; `hint` is what to do, if an example does not say it.
    """

    key: str
    least: float
    usual: float = 1
    above: bool = False
    most: float = math.inf
    hint: str = ""

    def check_value(self, value: float) -> None:
        """Raise ConfigError for a number that is not allowed; nan never is."""
        fits = value > self.least if self.above else value >= self.least
        if fits and value <= self.most:
            return
        least = f"more than {self.least}" if self.above else f"at least {self.least}"
        also = f", and at most {_format_number(self.most)}" if self.most < _REAL else ""
        raise ConfigError(
            f"{self.key} is {_format_number(value)}; it must be {least}{also}",
            hint=self.hint or f"for example {self.key}={self.usual}",
        )


def _format_number(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


_BOUNDS = (
    _Bound("resources.nodes", 1),
    _Bound("resources.min_nodes", 1),
    _Bound("resources.segment", 1),
    _Bound("resources.spare_nodes", 0),
    _Bound("resources.tasks_per_node", 1),
    _Bound("resources.cpus_per_task", 1),
    _Bound("resources.gpus_per_node", 0),
    _Bound("resources.timeout_min", 1),
    _Bound("resources.array_parallelism", 1),
    _Bound("resources.mem_gb", 0, 60, above=True),
    _Bound("checkpoint.keep", 2, 3),
    _Bound("checkpoint.interval_steps", 1),
    _Bound("checkpoint.interval_min", 0, 60, above=True),
    _Bound("checkpoint.mtbf_hours", 0, 60, above=True),
    _Bound("checkpoint.patience_s", 0, 60, above=True),
    _Bound("recovery.max_identical_failures", 1),
    _Bound("recovery.node_failures", 1),
    _Bound("recovery.backoff_s", 0),
    _Bound("recovery.grow_on_oom", 1, 1.5, above=True, most=_REAL),
    _Bound("recovery.grow_on_timeout", 1, 1.5, above=True, most=_REAL),
    _Bound("recovery.grow_max", 1, 4, above=True, most=_REAL),
    _Bound("recovery.max_backoff_s", 0, 60),
    _Bound("recovery.nan_patience", 0, 100),
    _Bound("recovery.command_silent_min", 0, 30, above=True),
    _Bound("budget.gpu_hours", 0),
    _Bound("cluster.nvlink_nodes", 1),
    _Bound("cluster.max_parallel", 1),
    _Bound("cluster.price_per_gpu_hour", 0, 1.5, most=_REAL),
    _Bound("cluster.carbon_g_per_kwh", 0, 350, most=_REAL),
    _Bound("cluster.pue", 1, 1.2, most=_REAL),
    _Bound("cluster.power_cap_w", 1, 500, most=_REAL),
    _Bound("sweep.max_concurrent", 1),
    _Bound("sweep.max_gpus", 1),
    _Bound("sweep.runs_per_job", 1),
    _Bound("sweep.runs_per_gpu", 1),
    _Bound("sweep.job_timeout_min", 1),
    _Bound("sweep.samples", 1),
    _Bound("code.max_mb", 0, 60, above=True),
    _Bound("preflight.clock_s", 0, 60, above=True),
    _Bound("preflight.limit_s", 0, 60, above=True),
    _Bound("runtime.agent_timeout_s", 0, 60, above=True),
    _Bound("runtime.rendezvous_timeout_s", 0, 60, above=True),
    # Agents send a sign of life once a second: with less, every hiccup would be a lost node.
    _Bound("runtime.node_timeout_s", 2, 6),
    _Bound("runtime.hang_min_s", 0, 300),
    _Bound("runtime.hang_factor", 1, 10),
    _Bound(
        "runtime.hang_first_s",
        0,
        above=True,
        hint="for example runtime.hang_first_s=1800; runtime.hang_min_s=0 turns this off",
    ),
    _Bound("runtime.save_before_timeout_s", 0, 60),
    _Bound("runtime.drain_poll_interval_s", 0, 300),
    _Bound("observe.interval_s", 0, most=LONGEST_ROW_S, hint="observe=off measures nothing"),
    _Bound("observe.row_s", 0, 30, most=LONGEST_ROW_S),
    _Bound("observe.max_mb", 0, above=True, most=MOST_MB, hint="observe=off writes no telemetry"),
    _Bound("observe.profile.at_step", 0, 100),
    _Bound(
        "observe.profile.steps",
        1,
        most=MOST_STEPS,
        hint="5 steps show what each step does; traces grow by megabytes a step",
    ),
    _Bound("seed", 0, most=_LARGEST_SEED),
)

_LONG_OPTION = lazy_pattern(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OF_SLURM = lazy_pattern(
    "[cg]pu-freq|(gpus|ntasks|mem)(-per-.*)?|(cpus|cores|sockets|threads)-per-.*|(core|thread)-spec"
    "|mincpus|nodes|array|comment|job-name|nice|priority|segment|signal|switches|time(-min)?|tmp"
    "|wckey|output|error|input|chdir|export(-file)?|extra|delay-boot|wrap|uid|gid|network|bb"
    "|acctg-freq|dependency|licenses|mail-user|mcs-label|container|get-user-env"
)
"""Options of sbatch (its manual, 25.05) that mean something else and would take a number of watts
without a word."""


def check_setting_values(settings: LaunchConfig) -> None:
    """Raise ConfigError for the first value that is not allowed."""
    _check_number_bounds(settings, "")
    _check_power_cap_option(settings.cluster.power_cap_option)


def check_cluster_values(cluster: Cluster) -> None:
    """Raise ConfigError for a fact that no site can have: a negative price, no power."""
    _check_number_bounds(cluster, "cluster.")
    _check_power_cap_option(cluster.power_cap_option)


def _check_number_bounds(values: LaunchConfig | Cluster, section: str) -> None:
    for bound in _BOUNDS:
        if bound.key.startswith(section):
            value = attrgetter(bound.key.removeprefix(section))(values)
            if value is not None:
                bound.check_value(value)


def _check_power_cap_option(option: str | None) -> None:
    if option is None:
        return
    if not _LONG_OPTION.fullmatch(option):
        raise ConfigError(
            f"cluster.power_cap_option={option!r} is not the name of an sbatch option",
            hint="write it without --, for example cluster.power_cap_option=gpu-power",
        )
    if _OF_SLURM.fullmatch(option):
        raise ConfigError(
            f"cluster.power_cap_option={option}: --{option} is Slurm's own and sets no watts",
            hint="name the option that your site's plugin adds, as `sbatch --help` lists it",
        )
