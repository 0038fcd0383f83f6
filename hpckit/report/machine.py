"""Rows as plain JSON values, for programs.

The field names of `--json` are stable and documented in docs/reference/cli. Fields may only be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpckit.model.goodput import Goodput
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.telemetry.usage import sum_energy_bills
from hpckit.report.diagnosis import energy_to_json, findings_to_json
from hpckit.report.failures import failure_group_to_json, group_failures
from hpckit.report.results import ResultRow, Results, list_goodput_values
from hpckit.report.rows import LaunchHead, RunRow
from hpckit.report.selection import LaunchLine, parse_override_values, parse_overrides
from hpckit.report.spread import SpreadResults, SpreadRow
from hpckit.values import replace

_RUN_FIELDS = "run index state job slurm_state attempt round step nodes exit_code failure metrics warnings"


def status_to_json(launch: str, rows: Iterable[RunRow], scheduler: str) -> dict[str, Any]:
    """Return the document that `status --json` prints."""
    some = list(rows)
    bills = [row.findings.energy for row in some if row.findings is not None]
    return {
        "launch": launch,
        "scheduler": scheduler,
        "runs": [run_row_to_json(row) for row in some],
        "failures": [failure_group_to_json(group) for group in group_failures(some)],
        "energy": energy_to_json(sum_energy_bills(bills)) if bills else None,
    }


def run_row_to_json(row: RunRow) -> dict[str, Any]:
    """Return one run as it appears in `runs` of `status --json`."""
    return {
        **attributes_to_json(row, _RUN_FIELDS),
        "goodput": row.goodput and goodput_to_json(row.goodput),
        **attributes_to_json(row, "stage"),
        "blocked": row.blocked or None,
        **attributes_to_json(row, "reason=early"),
        "overrides": parse_override_values(parse_overrides(row.overrides)),
        **attributes_to_json(row, "total_steps=total satellites preflight"),
        "container": row.container and attributes_to_json(row.container, "runtime image digest"),
        "staged": [attributes_to_json(one, "node name bytes seconds how") for one in row.staged],
        "grown": [attributes_to_json(change, "at cause words") for change in row.grown],
        **findings_to_json(row.findings),
        **attributes_to_json(row.layout, "layout replicas=layout.replicate"),
        **attributes_to_json(row.layout, "model_parameters parameters_per_rank=per_rank"),
    }


def goodput_to_json(account: Goodput) -> dict[str, Any]:
    """Return the goodput of a run: durations in seconds, shares from 0 to 1."""
    return {
        **list_goodput_values(account),
        **attributes_to_json(account, "failures planned"),
        "measured": {f"{name}_s": span for name, span in to_plain(account.measured).items()},
        **attributes_to_json(account, "history=interruptions"),
    }


def results_to_json(launch: str | None, results: Results) -> dict[str, Any]:
    """Return the document that `results --json` prints."""
    return {
        "launch": launch,
        **attributes_to_json(results, "overrides metrics"),
        "runs": [
            {
                **_result_row_to_json(replace(row, goodput=None)),
                "goodput": row.goodput and goodput_to_json(row.goodput),
            }
            for row in results.rows
        ],
    }


def spread_to_json(launch: str | None, results: SpreadResults) -> dict[str, Any]:
    """Return the document that `results --over --json` prints."""
    columns = attributes_to_json(results, "over overrides metrics")
    return {"launch": launch, **columns, "groups": [_result_row_to_json(row) for row in results.rows]}


def _result_row_to_json(row: ResultRow | SpreadRow) -> dict[str, Any]:
    return {**to_plain(row), "overrides": parse_override_values(row.overrides)}


def launches_to_json(launches: Iterable[LaunchLine]) -> dict[str, Any]:
    """Return the document that `ls --json` prints."""
    fields = "states=counts foreign=head.foreign"
    return {
        "launches": [
            {**launch_head_to_json(launch.head), **attributes_to_json(launch, fields)} for launch in launches
        ]
    }


def launch_head_to_json(head: LaunchHead) -> dict[str, Any]:
    """Return the fields that name a launch."""
    return attributes_to_json(head, "launch=id name dir=folder created_at")
