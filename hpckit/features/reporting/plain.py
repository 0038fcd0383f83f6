"""The document as plain JSON values, for programs: `report --json`. Pure.

Fields may only be added.
"""

from __future__ import annotations

from typing import Any

from hpckit.features.reporting.document import ReportDocument, RunTimeline
from hpckit.model.plain import plain_fields, to_plain
from hpckit.report.best import best_object, best_row
from hpckit.report.description import description_document
from hpckit.report.failures import group_failures, group_object
from hpckit.report.machine import run_object


def report_object(document: ReportDocument) -> dict[str, Any]:
    """Return the document that `report --json` prints."""
    goal = document.goal
    best = None if goal is None else best_row(document.results.rows, goal)
    return {
        "title": document.title,
        "written_at": to_plain(document.written_at),
        "launches": [
            {**description_document(one.about), "packages": dict(one.packages)}
            for one in document.launches
        ],
        "runs": [run_object(row) for row in document.rows],
        "failures": [group_object(group) for group in group_failures(document.rows)],
        "best": None if goal is None else best_object(best, goal),
        "goal": to_plain(goal),
        "overrides": list(document.results.overrides),
        "timelines": [_timeline_object(one) for one in document.timelines],
        **plain_fields(document, "curves", "metrics_left_out"),
        "gpu_activity": to_plain(document.activity),
        **plain_fields(document, "gpus", "ranks"),
    }


def _timeline_object(one: RunTimeline) -> dict[str, Any]:
    return {"run": one.run, "spans": to_plain(one.spans)}
