"""What an adaptive sweep needs of this machine before it is launched, and what is said of it.

Responsible for that alone; it must not open the study: that is for the nodes.
"""

from __future__ import annotations

import importlib.util
import sys

from hpckit.cli.context import Context
from hpckit.errors import ConfigError
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import LaunchPlan
from hpckit.planning.jobs.arrays import LEARNING


def check_search(plan: LaunchPlan, context: Context) -> None:
    """Raise ConfigError where Optuna is missing; say how many runs go at a time by default."""
    if plan.search is None:
        return
    if plan.python == sys.executable and importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            f"sweep.sampler=optuna needs Optuna, and {plan.python} does not have it",
            hint="pip install 'hpckit-slurm[optuna]'   (or sweep.sampler=random, which needs none)",
        )
    settings = plan.runs[0].settings
    if plan.cluster.kind is ClusterKind.slurm and settings.sweep.max_concurrent is None:
        context.note(
            f"{LEARNING} runs go at a time (sweep.max_concurrent): the more at a time, the less "
            "each knows of the others"
        )
