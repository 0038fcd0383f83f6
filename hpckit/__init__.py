"""hpckit: from a Hydra config to a finished run on Slurm, whatever breaks on the way.

Responsible for the public names: of training scripts, and of programs that launch. It must not import
torch, Hydra or submitit by itself, so that `hpckit --help` stays as fast as Python.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import would be most of the time that this one takes
if TYPE_CHECKING:
    from submitit.helpers import Checkpointable as Checkpointable  # noqa: TID251  # for users' classes

    from hpckit.api.finding import list_launches as ls
    from hpckit.api.finding import open_launch as open  # noqa: A004  # always called hpckit.open
    from hpckit.api.handles import Launch as Launch
    from hpckit.api.handles import LaunchedRun as LaunchedRun
    from hpckit.api.launching import launch as launch
    from hpckit.executor.encoding import DelayedSubmission as DelayedSubmission
    from hpckit.executor.executor import Executor as Executor
    from hpckit.executor.job import Job as Job
    from hpckit.model.parallel.plan import Plan as Plan
    from hpckit.runtime.parallel.initialise import reset_parameters as reset_parameters
    from hpckit.runtime.rank.attach import attach as attach
    from hpckit.runtime.rank.run import Run as Run
    from hpckit.version import __version__ as __version__

__all__ = [
    "Checkpointable",
    "DelayedSubmission",
    "Executor",
    "Job",
    "Launch",
    "LaunchedRun",
    "Plan",
    "Run",
    "__version__",
    "attach",
    "launch",
    "ls",
    "open",
    "reset_parameters",
]

_HOMES = {
    "__version__": "hpckit.version:__version__",
    "Checkpointable": "submitit.helpers:Checkpointable",
    "DelayedSubmission": "hpckit.executor.encoding:DelayedSubmission",
    "Executor": "hpckit.executor.executor:Executor",
    "Job": "hpckit.executor.job:Job",
    "Launch": "hpckit.api.handles:Launch",
    "LaunchedRun": "hpckit.api.handles:LaunchedRun",
    "Plan": "hpckit.model.parallel.plan:Plan",
    "Run": "hpckit.runtime.rank.run:Run",
    "attach": "hpckit.runtime.rank.attach:attach",
    "launch": "hpckit.api.launching:launch",
    "ls": "hpckit.api.finding:list_launches",
    "open": "hpckit.api.finding:open_launch",
    "reset_parameters": "hpckit.runtime.parallel.initialise:reset_parameters",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for (PEP 562)."""
    home, _, own = _HOMES.get(name, "").partition(":")
    if home:
        return getattr(import_module(home), own)
    if name == "integrations":
        return import_module("hpckit.integrations")
    raise AttributeError(f"module 'hpckit' has no attribute {name!r}")
