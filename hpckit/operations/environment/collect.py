"""Collects the facts of the machine it runs on: here for `doctor --env`, and on a compute node.

Imports neither Hydra nor torch, so that it also runs where torch does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpckit import __version__
from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.environment.facts import EnvironmentFacts, FolderRole, SlurmFacts
from hpckit.observe.environment.machine import read_machine
from hpckit.observe.environment.torch_probe import read_torch
from hpckit.planning.compatibility.judge import chosen_variables
from hpckit.record.store import open_plain
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_query import PATIENCE
from hpckit.values import replace

TOKEN_BYTES = 256
"""A token file is shorter; nothing longer is read."""


def collect_facts(
    context: Context, *, output: Path, project: Path, bin_dir: str | None, token: Path | None
) -> EnvironmentFacts:
    """Return the facts of this machine; takes seconds, most of them to import torch.

    `output` is the folder of launches, `bin_dir` that of Slurm's programs, `token` the token file
    of the other side.
    """
    environ = context.environ
    torch = read_torch(environ)
    folders = {FolderRole.output: output, FolderRole.project: project}
    found = read_machine(
        environ,
        folders,
        hpckit=__version__,
        torch=torch,
        variables=chosen_variables(environ),
        at=context.now(),
    )
    return replace(
        found,
        slurm=read_slurm(environ, bin_dir),
        token=None if token is None else read_token(token),
        at=context.now(),
    )


def read_slurm(environ: Mapping[str, str], bin_dir: str | None) -> SlurmFacts:
    """Return which Slurm this machine has; all unknown if its programs do not answer."""
    commands = SlurmCommands(bin_dir=bin_dir, environ=environ, timeout=PATIENCE)
    if not commands.available("srun"):
        return SlurmFacts(version="")
    try:
        # `slurm 24.11.1`, of Debian `slurm-wlm 22.05.8`
        version = commands.run("srun", "--version").rpartition(" ")[2].strip() or None
        options = commands.run_aloud("srun", "--help")
    except SchedulerError:
        return SlurmFacts()
    return SlurmFacts(version=version, container_image="--container-image" in options)


def read_token(file: Path) -> str | None:
    """Return the text of a token file of the caller's own; None without one."""
    try:
        with open_plain(file) as opened:
            own = os.fstat(opened.fileno()).st_uid == os.getuid()
            return opened.read(TOKEN_BYTES).decode("ascii", "replace") if own else None
    except OSError:
        return None
