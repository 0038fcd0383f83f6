"""Runs `sbatch --test-only`: what Slurm would answer for a job, without submitting it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.errors import SchedulerRefusedError
from hpckit.model.cluster.site import NodeGroup
from hpckit.model.finding import ExpectedStart, Finding, build_error_finding, build_warning_finding
from hpckit.model.plan import JobSpec
from hpckit.patterns import lazy_pattern
from hpckit.slurm.commands import SlurmCommands, list_variables_to_hide_from_sbatch
from hpckit.slurm.parse import parse_slurm_time

_START = lazy_pattern(r"Job \S+ to start at (\S+)(.*)")
UNDECIDED = (
    "node configuration is not available",
    "partition configuration not available now",
    "required node not available",
    "nodes are busy",
)
"""Messages that --test-only also gives when nodes are only down, drained or reserved: sbatch would
accept such a job and let it wait. Seen with 22.05.
"""


def dry_run_sbatch(
    job: JobSpec, text: str, commands: SlurmCommands, nodes: Callable[[], Sequence[NodeGroup] | None]
) -> ExpectedStart | Finding:
    """Return when the job would start, or why Slurm refuses it; raises SchedulerAwayError.

    For an array, the first element is tested. `nodes` is called only if a refusal may be due to
    temporarily unavailable nodes.
    """
    # On the command line, where it takes precedence over the script's own lines.
    first = ["--array=0"] if job.is_array else []
    with tempfile.TemporaryDirectory(prefix="hpckit-check-") as folder:
        script = Path(folder) / "job.sbatch"
        script.write_text(text, encoding="utf-8")
        try:
            said = commands.run_with_all_output(
                "sbatch", "--test-only", *first, str(script), without=list_variables_to_hide_from_sbatch(text)
            )
        except SchedulerRefusedError as refusal:
            return _build_refusal_finding(job, refusal, nodes)
    return _parse_expected_start(job, said)


def _parse_expected_start(job: JobSpec, said: str) -> ExpectedStart:
    match = _START.search(said)
    if match is None:
        return ExpectedStart(job_index=job.index, at=None, words=" ".join(said.split()))
    return ExpectedStart(job_index=job.index, at=parse_slurm_time(match[1]), words=match[2].strip())


def _build_refusal_finding(
    job: JobSpec, refusal: SchedulerRefusedError, nodes: Callable[[], Sequence[NodeGroup] | None]
) -> Finding:
    undecided = any(mark in refusal.message.lower() for mark in UNDECIDED)
    groups = nodes() if undecided else ()
    if groups is None or any(not group.accepts_jobs for group in groups):
        return build_warning_finding(
            "resources",
            job.name,
            f"{refusal.message}; some nodes are down, drained or reserved, so that the job may "
            "have to wait for them",
            refusal.hint,
        )
    return build_error_finding("resources", job.name, refusal.message, refusal.hint)
