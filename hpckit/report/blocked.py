"""Text about runs that never began because an earlier stage did not complete. Pure.

Each reason appears once, however many runs it holds up.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.ranges import ranges
from hpckit.report.results import ResultRow
from hpckit.report.rows import RunRow

_SHOWN = 5


def blocked_lines(rows: Sequence[RunRow | ResultRow]) -> list[str]:
    """Return a line for each reason; if there are too many, the last line counts the rest."""
    reasons: dict[tuple[str | None, str], list[int]] = {}
    for row in rows:
        if row.blocked:
            reasons.setdefault((row.stage, row.blocked), []).append(row.index)
    lines = [
        f"cancelled: stage {stage}, run {ranges(runs)}: because {reason}"
        for (stage, reason), runs in reasons.items()
    ]
    left = len(lines) - _SHOWN
    return lines if left <= 0 else [*lines[:_SHOWN], f"… and for {left} more reasons"]
