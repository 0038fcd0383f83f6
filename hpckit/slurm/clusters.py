"""Refuses every way in which a job could get to another cluster than this machine's own.

squeue, sacct and scancel would look up such a job on this cluster, where its number belongs to
another job or to none: it would count as lost and be started a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpckit.errors import UsageError

VARIABLES = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
"""Variables that send sbatch to other clusters; hpckit removes them for Slurm's programs."""

HINT = (
    "hpckit works with one cluster, that of the machine it starts on: launch on a login node of "
    "that cluster, or set cluster.bin_dir to a folder of Slurm's programs that talk to it"
)

_ANSWER = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?")


def refuse_other_clusters(environ: Mapping[str, str]) -> None:
    """Raise UsageError if the environment would send jobs to named clusters."""
    for name in VARIABLES:
        if environ.get(name):
            raise UsageError(
                f"${name} is {environ[name]!r}: it would send jobs to clusters that hpckit does "
                "not ask about them",
                hint=f"{HINT}; if it is this machine's own cluster, unset {name}",
            )


def read_answer(answer: str) -> tuple[str, str | None] | None:
    """Return the job that sbatch reports, and the cluster if it names one.

    None if the answer has other words, too: a site's wrapper may quote other jobs in them.
    """
    match = _ANSWER.fullmatch(answer.strip())
    return None if match is None else (match[1], match[2])
