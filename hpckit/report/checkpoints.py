"""Checkpoints of runs as rows: a table, and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from hpckit.model.counted import format_byte_size
from hpckit.model.parallel.layout import Layout
from hpckit.model.plain import attributes_to_json
from hpckit.report.escape import escape_table_cell
from hpckit.report.text import Page, TextTable
from hpckit.values import dataclass


class CheckpointState(StrEnum):
    """What is known of a checkpoint."""

    saved = "saved"
    """it was committed, and nothing is known against it"""
    proved = "proved"
    """a run has loaded it, and trained on"""
    refused = "refused"
    """a run could not load it, or loaded it twice and never got on"""
    damaged = "damaged"
    """files are missing, or not as they were written"""
    unfinished = "unfinished"
    """it was never committed: a save is at work, or has died"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """What is shown of a checkpoint.

    `size` is in bytes; it, `samples`, `layout` and `saved_at` are None without a readable manifest.
    `problem` says what is wrong with a damaged one.
    """

    run: str
    name: str
    folder: str
    step: int
    attempt: int
    state: CheckpointState
    problem: str = ""
    samples: int | None = None
    size: int | None = None
    layout: Layout | None = None
    objects: tuple[str, ...] = ()
    saved_at: str | None = None


def render_checkpoints_page(rows: Sequence[CheckpointRow]) -> Page:
    """Return the table of checkpoints, and a line for each problem."""
    if not rows:
        return ["no checkpoints"]
    cells = tuple(
        (
            row.run,
            str(row.step),
            str(row.attempt),
            "" if row.size is None else format_byte_size(row.size),
            "" if row.layout is None else str(row.layout),
            escape_table_cell(", ".join(row.objects)),
            row.state.value,
            row.name,
        )
        for row in rows
    )
    header = ("run", "step", "attempt", "size", "layout", "objects", "state", "checkpoint")
    table = TextTable(header=header, rows=cells, spare=("objects", "attempt"))
    return [table, *(f"{row.name}: {escape_table_cell(row.problem)}" for row in rows if row.problem)]


def checkpoints_to_json(rows: Sequence[CheckpointRow]) -> dict[str, Any]:
    """Return the document of `hpckit checkpoint --json`."""
    fields = "run name folder step samples attempt state problem bytes=size layout objects saved_at"
    return {"checkpoints": [attributes_to_json(row, fields) for row in rows]}
