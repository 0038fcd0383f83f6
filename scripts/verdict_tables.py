"""Writes the table of docs/explanations/verdicts.md from the rules and their thresholds.

    python scripts/verdict_tables.py     # writes it between the marks of the page

A test holds that the page has what this makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from hpckit.planning.diagnosis.diagnose import RULES
from hpckit.planning.diagnosis.thresholds import DEFAULT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanations" / "verdicts.md"
BEGIN = "<!-- Made by scripts/verdict_tables.py from hpckit/planning/diagnosis. -->\n"
END = "<!-- The end of what is made. -->\n"


def tables() -> str:
    """Return the table of kinds with their thresholds, and the thresholds of severity."""
    kinds = ["| kind | measured | thresholds | remedy |", "|---|---|---|---|"]
    kinds += [
        f"| `{rule.kind}` | {rule.measured} | {_listed(rule.thresholds)} | {rule.remedy} |" for rule in RULES
    ]
    of_rules = {name for rule in RULES for name in rule.thresholds}
    others = [field.name for field in fields(DEFAULT) if field.name not in of_rules]
    return "\n".join([*kinds, "", f"Thresholds of the severity: {_listed(others)}."]) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}` {getattr(DEFAULT, name):g}" for name in names)


def page_with(text: str, made: str) -> str:
    """Return the page's text with these tables between its marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return f"{head}{begin}\n{made}\n{end}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
