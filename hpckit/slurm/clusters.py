"""One cluster: the one whose programs stand on this machine. Others are refused, in plain words.

Responsible for every way in which a job could get to another cluster. There squeue, sacct and
scancel would ask about it here, where its number is somebody else's, or nobody's: it would pass
for lost and be started a second time. It must not run programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpckit.errors import UsageError

VARIABLES = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
"""What sends sbatch to other clusters; no program of Slurm's gets it from hpckit."""

HINT = (
    "hpckit works with one cluster, that of the machine it starts on: launch on a login node of "
    "that cluster, or set cluster.bin_dir to a folder of Slurm's programs that talk to it"
)

_ELSEWHERE = re.compile(r"Submitted batch job (\d+) on cluster (\S+)")


def refuse_other_clusters(environ: Mapping[str, str]) -> None:
    """Raise UsageError where the environment would send jobs to named clusters."""
    for name in VARIABLES:
        if environ.get(name):
            raise UsageError(
                f"${name} is {environ[name]!r}: it would send jobs to clusters that hpckit does "
                "not ask about them",
                hint=f"{HINT}; if it is this machine's own cluster, unset {name}",
            )


def elsewhere(answer: str) -> tuple[str, str] | None:
    """Return the job and the cluster, where sbatch says that it is on a named one."""
    match = _ELSEWHERE.search(answer)
    return None if match is None else (match[1], match[2])
