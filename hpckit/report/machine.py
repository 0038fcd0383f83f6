"""Rows as plain JSON values, for programs.

The field names of `--json` are stable and documented in docs/reference/cli. Fields may only be
added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpckit.model.goodput import Goodput
from hpckit.model.plain import plain_fields, to_plain
from hpckit.model.telemetry.usage import launch_bill
from hpckit.report.diagnosis import energy_object, findings_object
from hpckit.report.failures import group_failures, group_object
from hpckit.report.results import ResultRow, Results, account_values
from hpckit.report.rows import LaunchHead, RunRow
from hpckit.report.selection import LaunchLine, assigned, typed_value
from hpckit.report.spread import SpreadResults, SpreadRow
from hpckit.values import replace

_RUN_FIELDS = (
    "run index state job slurm_state attempt round step nodes exit_code failure metrics warnings"
)


def status_document(launch: str, rows: Iterable[RunRow], scheduler: str) -> dict[str, Any]:
    """Return the document that `status --json` prints."""
    some = list(rows)
    bills = [row.findings.energy for row in some if row.findings is not None]
    return {
        "launch": launch,
        "scheduler": scheduler,
        "runs": [run_object(row) for row in some],
        "failures": [group_object(group) for group in group_failures(some)],
        "energy": energy_object(launch_bill(bills)) if bills else None,
    }


def run_object(row: RunRow) -> dict[str, Any]:
    """Return one run as it appears in `runs` of `status --json`."""
    return {
        **plain_fields(row, _RUN_FIELDS),
        "goodput": row.goodput and goodput_object(row.goodput),
        **plain_fields(row, "stage"),
        "blocked": row.blocked or None,
        **plain_fields(row, "reason=early"),
        "overrides": _typed(assigned(row.overrides)),
        **plain_fields(row, "total_steps=total satellites preflight"),
        **findings_object(row.findings),
        **plain_fields(row.layout, "layout replicas=layout.replicate"),
        **plain_fields(row.layout, "model_parameters parameters_per_rank=per_rank"),
    }


def goodput_object(account: Goodput) -> dict[str, Any]:
    """Return the goodput of a run: durations in seconds, shares from 0 to 1."""
    return {
        **account_values(account),
        **plain_fields(account, "failures planned"),
        "measured": {f"{name}_s": span for name, span in to_plain(account.measured).items()},
        **plain_fields(account, "history=interruptions"),
    }


def results_document(launch: str | None, results: Results) -> dict[str, Any]:
    """Return the document that `results --json` prints."""
    return {
        "launch": launch,
        **plain_fields(results, "overrides metrics"),
        "runs": [
            {
                **_typed_row(replace(row, goodput=None)),
                "goodput": row.goodput and goodput_object(row.goodput),
            }
            for row in results.rows
        ],
    }


def spread_document(launch: str | None, results: SpreadResults) -> dict[str, Any]:
    """Return the document that `results --over --json` prints."""
    columns = plain_fields(results, "over overrides metrics")
    return {"launch": launch, **columns, "groups": [_typed_row(row) for row in results.rows]}


def _typed_row(row: ResultRow | SpreadRow) -> dict[str, Any]:
    return {**to_plain(row), "overrides": _typed(row.overrides)}


def _typed(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return values as the runs have them; a variable of the environment is a text."""
    typed = {key: typed_value(text) for key, text in overrides.items()}
    return typed | {
        key: text
        for key, text in overrides.items()
        if key.startswith("env.") and isinstance(typed[key], int | float)
    }


def launches_document(launches: Iterable[LaunchLine]) -> dict[str, Any]:
    """Return the document that `ls --json` prints."""
    fields = "states=counts foreign=head.foreign"
    return {
        "launches": [
            {**head_object(launch.head), **plain_fields(launch, fields)} for launch in launches
        ]
    }


def head_object(head: LaunchHead) -> dict[str, Any]:
    """Return the fields that name a launch."""
    return plain_fields(head, "launch=id name dir=folder created_at")
