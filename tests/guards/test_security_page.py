"""docs/explanations/security.md promises nothing without a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanations" / "security.md").read_text()
PROMISE = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)


def test_page_names_a_test_for_each_promise() -> None:
    """Every line of its tables names tests that exist."""
    there = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    promises = [row for row in PROMISE.finditer(PAGE) if row["promise"] not in {"promise", "---"}]
    assert promises
    for row in promises:
        named = re.findall(r"`(test_\w+)`", row["tests"])
        assert named, row["promise"]
        assert [name for name in named if f"def {name}(" not in there] == []


def test_page_leaves_no_test_of_its_subject_out() -> None:
    """Every test of a file `test_security*.py` stands in the page."""
    files = (ROOT / "tests").rglob("test_security*.py")
    tests = "\n".join(path.read_text() for path in files if path != Path(__file__))
    names = re.findall(r"^def (test_security_\w+)\(", tests, re.MULTILINE)
    assert names
    assert [name for name in names if f"`{name}`" not in PAGE] == []
