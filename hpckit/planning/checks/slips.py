"""What a plan will do, and hardly was meant to. Pure.

Responsible for warnings that follow from the configuration alone; it must not look at the machine
or the cluster, and refuses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpckit.model.command import command_words
from hpckit.model.counted import counted
from hpckit.model.finding import Finding, warning
from hpckit.model.launch import ClusterKind, LaunchConfig, Sampler
from hpckit.model.plan import LaunchPlan
from hpckit.planning.checks.command_slips import command_slips

_CLUSTER_ONLY = ("modules", "setup", "partition", "account", "qos", "srun_args")
_RESOURCES_ONLY = (
    *("mem_gb", "timeout_min", "partition", "account", "qos", "constraint", "nodelist", "exclude"),
    *("reservation", "gres", "exclusive", "dependency", "mail_type", "additional_parameters"),
)
"""What only Slurm reads."""


def plan_slips(plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return warnings about a plan, each once."""
    found: dict[Finding, None] = {}
    for run in plan.runs:
        found.update(dict.fromkeys(_in_command(run.settings)))
        if plan.cluster.kind is ClusterKind.local:
            found.update(dict.fromkeys(_ignored_here(run.settings)))
    found.update(dict.fromkeys(_equal_runs(plan)))
    return tuple(found)


def _in_command(settings: LaunchConfig) -> Iterator[Finding]:
    if settings.command is not None:
        words = command_words(settings.command)
        yield from command_slips(words, settings.resources.tasks_per_node)


def slurm_only(settings: LaunchConfig) -> list[str]:
    """Return the keys with a value that only Slurm reads."""
    given = [f"cluster.{name}" for name in _CLUSTER_ONLY if getattr(settings.cluster, name)]
    return given + [
        f"resources.{name}" for name in _RESOURCES_ONLY if getattr(settings.resources, name)
    ]


def _ignored_here(settings: LaunchConfig) -> Iterator[Finding]:
    given = slurm_only(settings)
    if given:
        yield warning(
            given[0],
            "",
            f"on this machine nothing reads {', '.join(given)}: there is no scheduler",
            "they count with cluster=slurm; to prepare the environment here, do it in your shell",
        )


def _equal_runs(plan: LaunchPlan) -> Iterator[Finding]:
    sampled = any(run.settings.sweep.sampler is Sampler.optuna for run in plan.runs)
    times = Counter(run.signature for run in plan.runs)
    more = sum(number - 1 for number in times.values())
    if more and not sampled:
        first = next(run for run in plan.runs if times[run.signature] > 1)
        yield warning(
            "sweep",
            " ".join(first.overrides),
            f"{counted(more, 'run')} of this sweep {'is' if more == 1 else 'are'} the same as "
            f"another one of it, such as {' '.join(first.overrides)}",
            "take values out that are there twice, or set different seeds",
        )
