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
from hpckit.model.launch import SLURM_ONLY, ClusterKind, LaunchConfig, Sampler
from hpckit.model.plan import LaunchPlan
from hpckit.planning.checks.command_slips import command_slips

_HARMLESS = frozenset(
    {"cluster.bin_dir", "cluster.template", "cluster.service_partition", "cluster.service_qos"}
    | {"resources.comment", "resources.mail_user", "resources.min_nodes"}
)
"""Keys without which a run on this machine lacks nothing."""


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


def _ignored_here(settings: LaunchConfig) -> Iterator[Finding]:
    sections = {"cluster": settings.cluster, "resources": settings.resources}
    given = [
        f"{section}.{name}"
        for section, _, name in (key.partition(".") for key in SLURM_ONLY)
        if section in sections and f"{section}.{name}" not in _HARMLESS
        if getattr(sections[section], name)
    ]
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
