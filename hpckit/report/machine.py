"""Rows as plain JSON values, for programs.

Responsible for the stable field names of `--json`, documented in docs/cli.md; it must not print.
Fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpckit.model.plain import to_plain
from hpckit.model.states import RunState
from hpckit.report.results import Results
from hpckit.report.rows import LaunchHead, RunRow

_RUN_FIELDS = (
    "run",
    "index",
    "state",
    "job",
    "slurm_state",
    "attempt",
    "round",
    "step",
    "nodes",
    "exit_code",
    "failure",
    "metrics",
)


def status_document(launch: str, rows: Iterable[RunRow], scheduler: str) -> dict[str, Any]:
    """Return what `status --json` prints."""
    return {"launch": launch, "scheduler": scheduler, "runs": [run_object(row) for row in rows]}


def run_object(row: RunRow) -> dict[str, Any]:
    """Return one run as it stands in `runs` of `status --json`."""
    return {name: to_plain(getattr(row, name)) for name in _RUN_FIELDS}


def results_document(launch: str, results: Results) -> dict[str, Any]:
    """Return what `results --json` prints."""
    return {
        "launch": launch,
        "overrides": list(results.overrides),
        "metrics": list(results.metrics),
        "runs": [to_plain(row) for row in results.rows],
    }


def launches_document(
    launches: Iterable[tuple[LaunchHead, Mapping[RunState, int]]],
) -> dict[str, Any]:
    """Return what `ls --json` prints, from heads and their counts by state."""
    return {
        "launches": [
            {
                "launch": head.id,
                "name": head.name,
                "dir": head.folder,
                "created_at": to_plain(head.created_at),
                "states": {str(state): count for state, count in counts.items()},
            }
            for head, counts in launches
        ]
    }
