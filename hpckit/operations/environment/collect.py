"""Collects the facts of the machine it runs on: here for `doctor --env`, and on a compute node.

Imports neither Hydra nor torch, so that it also runs where torch does not.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from hpckit import __version__
from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.environment.facts import EnvironmentFacts, PythonFacts, SlurmFacts
from hpckit.model.environment.roles import FolderRole
from hpckit.model.plan import MASK
from hpckit.observe.environment.file_systems import read_file_systems
from hpckit.observe.environment.gpus import read_driver
from hpckit.observe.environment.networks import read_networks
from hpckit.observe.environment.system import (
    granted_cpus,
    granted_memory,
    read_limits,
    system_name,
)
from hpckit.observe.environment.torch_probe import read_torch
from hpckit.observe.nvml.bindings import old_distribution
from hpckit.planning.secrecy import is_secret, known_secrets
from hpckit.record.process import this_host
from hpckit.record.store import open_plain
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_query import PATIENCE

TOKEN_BYTES = 256
"""A token file is shorter; nothing longer is read."""

_BEGINNINGS = ("NCCL_", "TORCH_NCCL_")
_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"})


def collect_facts(
    context: Context, *, output: Path, project: Path, bin_dir: str | None, token: Path | None
) -> EnvironmentFacts:
    """Return the facts of this machine; takes seconds, most of them to import torch.

    `output` is the folder of launches, `bin_dir` that of Slurm's programs, `token` the token file
    of the other side.
    """
    environ = context.environ
    torch = read_torch(environ)
    folders = {
        FolderRole.output: output,
        FolderRole.project: project,
        FolderRole.home: Path(environ.get("HOME") or "/"),
        FolderRole.temporary: Path(environ.get("TMPDIR") or "/tmp"),  # noqa: S108  # only looked at
        FolderRole.shared_memory: Path("/dev/shm"),  # noqa: S108  # likewise
    }
    return EnvironmentFacts(
        host=this_host(),
        system=system_name(),
        kernel=platform.release(),
        cpus=granted_cpus(),
        memory_bytes=granted_memory(),
        python=_python(),
        torch=torch,
        driver=read_driver(environ),
        network=read_networks(environ),
        limits=read_limits(),
        file_systems=read_file_systems(folders),
        variables=chosen_variables(environ),
        slurm=read_slurm(environ, bin_dir),
        token=None if token is None else read_token(token),
        at=context.now(),
    )


def chosen_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what NCCL, CUDA and OpenMP do; secrets are masked."""
    known = known_secrets(environ)
    return {
        name: MASK if is_secret(name, value, known) else value
        for name, value in sorted(environ.items())
        if name.startswith(_BEGINNINGS) or name in _NAMES
    }


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


def _python() -> PythonFacts:
    return PythonFacts(
        version=platform.python_version(),
        executable=sys.executable,
        hpckit=__version__,
        old_pynvml=old_distribution(),
    )
