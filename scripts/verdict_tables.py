"""Writes the tables of docs/explanations/verdicts.md from the rules and their thresholds.

    python scripts/verdict_tables.py     # writes them between the marks of the page

A test holds that the page has what this makes.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hpckit.planning.diagnosis.diagnose import RULES
from hpckit.planning.diagnosis.thresholds import DEFAULT, reasons

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanations" / "verdicts.md"
BEGIN = "<!-- Made by scripts/verdict_tables.py from hpckit/planning/diagnosis. -->\n"
END = "<!-- The end of what is made. -->\n"


def tables() -> str:
    """Return the table of kinds and that of thresholds."""
    kinds = ["| kind | what is measured | thresholds | remedy |", "|---|---|---|---|"]
    for rule in RULES:
        names = ", ".join(f"`{name}` {_number(getattr(DEFAULT, name))}" for name in rule.thresholds)
        kinds.append(f"| `{rule.kind}` | {rule.measured} | {names} | {rule.remedy} |")
    limits = ["| threshold | value | why |", "|---|---|---|"]
    for field in fields(DEFAULT):
        value = _number(getattr(DEFAULT, field.name))
        limits.append(f"| `{field.name}` | {value} | {reasons()[field.name]} |")
    return "\n".join([*kinds, "", *limits]) + "\n"


def _number(value: float) -> str:
    return f"{value:g}"


def page_with(text: str, made: str) -> str:
    """Return the page's text with these tables between its marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return f"{head}{begin}\n{made}\n{end}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
