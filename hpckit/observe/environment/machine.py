"""All facts of the machine that this process runs on, but those that only Slurm's programs know."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from hpckit.model.environment.facts import EnvironmentFacts, PythonFacts, TorchFacts
from hpckit.model.environment.roles import FolderRole
from hpckit.observe.environment.file_systems import read_file_systems
from hpckit.observe.environment.networks import read_networks
from hpckit.observe.environment.system import (
    granted_cpus,
    granted_memory,
    read_limits,
    system_name,
)
from hpckit.observe.nvml.bindings import old_distribution
from hpckit.observe.nvml.job_gpus import read_driver
from hpckit.record.process import this_host


def read_machine(
    environ: Mapping[str, str],
    folders: Mapping[FolderRole, Path],
    *,
    hpckit: str,
    torch: TorchFacts,
    variables: Mapping[str, str],
    at: datetime,
) -> EnvironmentFacts:
    """Return the facts of this machine, with these folders and the usual ones.

    Parameters: `hpckit` is its version, `variables` those that are worth showing.
    """
    looked_at = {
        **folders,
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
        python=PythonFacts(
            version=platform.python_version(),
            executable=sys.executable,
            hpckit=hpckit,
            old_pynvml=old_distribution(),
        ),
        torch=torch,
        driver=read_driver(environ),
        network=read_networks(environ),
        limits=read_limits(),
        file_systems=read_file_systems(looked_at),
        variables=dict(variables),
        at=at,
    )
