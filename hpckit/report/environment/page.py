"""What `hpckit doctor --env` prints: a table of facts, then findings; or one JSON object. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.counted import counted
from hpckit.model.environment.comparison import EnvironmentComparison
from hpckit.model.finding import Finding, Severity
from hpckit.model.plain import to_plain
from hpckit.report.environment.rows import FactRow, fact_rows
from hpckit.report.text import Page, TextTable


def environment_page(comparison: EnvironmentComparison, findings: Sequence[Finding]) -> Page:
    """Return the table of facts that differ or that findings are about, and the findings.

    Of one machine alone all facts are shown.
    """
    rows = fact_rows(comparison, findings)
    shown = [row for row in rows if row.shown]
    page: list[TextTable | str] = [_table(comparison, shown)]
    if alike := len(rows) - len(shown):
        page.append(f"{counted(alike, 'more fact')} alike on both sides; --json has all")
    for one in findings:
        page.append(f"{one.severity}: {one.message}")
        page += [f"  {line}" for line in one.hint.splitlines()]
    if not findings:
        page.append("nothing was found that would not work")
    return page


def _table(comparison: EnvironmentComparison, rows: Sequence[FactRow]) -> TextTable:
    if comparison.node is None:
        cells = tuple((row.name, row.here) for row in rows)
        return TextTable(header=("FACT", "HERE"), rows=cells, flexible=("HERE",))
    node = comparison.node.host.upper()
    node = "NODE" if node == "HERE" else node
    return TextTable(
        header=("FACT", "HERE", node),
        rows=tuple((row.name, row.here, row.node or "") for row in rows),
        flexible=("HERE", node),
    )


def environment_document(
    comparison: EnvironmentComparison, findings: Sequence[Finding]
) -> dict[str, object]:
    """Return the object of `doctor --env --json`."""
    clock = comparison.clock
    return {
        "here": to_plain(comparison.here),
        "node": to_plain(comparison.node),
        "asked": to_plain(comparison.asked),
        "clock_offset_s": None if clock is None else [clock.least_s, clock.most_s],
        "same_output_folder": _same_folder(comparison),
        "findings": [
            {
                "level": one.severity.value,
                "fact": one.key,
                "value": one.value,
                "message": one.message,
                "hint": one.hint,
            }
            for one in findings
        ],
        "works": not any(one.severity is Severity.error for one in findings),
    }


def _same_folder(comparison: EnvironmentComparison) -> bool | None:
    if comparison.node is None or comparison.token is None:
        return None
    return comparison.node.token == comparison.token
