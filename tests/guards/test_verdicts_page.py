"""docs/explanations/verdicts.md has every rule and threshold, as the code has it."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_page_has_the_tables_that_the_rules_make() -> None:
    """Whoever changes a rule or a threshold makes the table again."""
    made = runpy.run_path(str(ROOT / "scripts" / "verdict_tables.py"))
    text = made["PAGE"].read_text(encoding="utf-8")
    assert made["BEGIN"] in text
    assert made["END"] in text
    assert made["page_with"](text, made["tables"]()) == text, "run: python scripts/verdict_tables.py"
