"""Refuses what cannot run in the foreground: anything but one rank on this machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from hpckit.errors import UsageError
from hpckit.model.launch import SLURM_ONLY, ClusterKind
from hpckit.model.plan import LaunchPlan

_HARMLESS = frozenset(
    {"cluster.bin_dir", "cluster.template", "cluster.service_partition", "cluster.service_qos"}
    | {"resources.comment", "resources.mail_user", "resources.min_nodes"}
)
"""Keys that can be ignored on this machine without harm."""


def check_foreground(plan: LaunchPlan, overrides: Sequence[str]) -> None:
    """Raise UsageError if a plan is more than one rank here, or an override is only for Slurm."""
    if plan.stages:
        names = ", ".join(stage.name for stage in plan.stages)
        raise UsageError(
            f"--foreground takes one run, and this launch has stages: {names}",
            hint="launch the experiment of one stage",
        )
    if len(plan.runs) > 1 or plan.search is not None:
        raise UsageError(
            f"--foreground takes one run, and this is a sweep of {len(plan.runs)}",
            hint="leave -m out and give each swept key one value",
        )
    settings = plan.runs[0].settings
    if plan.cluster.kind is ClusterKind.slurm:
        raise UsageError(
            "--foreground runs on this machine, and the cluster chosen is Slurm's",
            hint="leave cluster=... out, or write cluster=local",
        )
    tasks = settings.resources.tasks_per_node  # this machine is one node; that was checked before
    if tasks > 1:
        raise UsageError(
            f"--foreground starts one rank, and resources.tasks_per_node is {tasks}",
            hint="add resources=cpu (one rank), or resources.tasks_per_node=1",
        )
    # Only typed ones: in files, they are for other launches.
    typed = {word.lstrip("+").partition("=")[0] for word in overrides} - _HARMLESS
    for key in sorted(typed.intersection(SLURM_ONLY)):
        if key.startswith(("cluster.", "resources.")) and attrgetter(key)(settings):
            raise UsageError(
                f"--foreground runs on this machine, where nothing reads {key}",
                hint=f"leave {key}=... out",
            )
