"""Guards over what people read: causes that the page lists, and counts with their nouns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hpckit.model.counted import counted
from hpckit.model.failure import Cause

_ROOT = Path(__file__).parents[2]


def test_words_of_the_page_are_all_causes() -> None:
    """docs/cli.md explains every cause that `status --json` can name, and no other."""
    page = (_ROOT / "docs/cli.md").read_text()
    table = page.partition("| cause | what ended the run |\n|---|---|\n")[2].partition("\n\n")[0]
    told = [
        name
        for line in table.splitlines()
        for name in re.findall("`(.+?)`", line[: line.index("|", 1)])
    ]
    assert sorted(told) == sorted(Cause)


def test_words_for_a_count_are_singular_or_plural() -> None:
    """`1 run`, `2 runs`, `0 runs`; no message leaves the choice to its reader as `run(s)`."""
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    for file in (_ROOT / "hpckit").rglob("*.py"):
        tree = ast.parse(file.read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found = [one for one in texts if isinstance(one, str) and re.search(r"[a-z]\(s\)", one)]
        assert not found, f"{file}: {found}"
