"""Guards over what people read: causes that the page lists, and counts with their nouns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hpckit.model.counted import counted
from hpckit.model.failure import Cause

_ROOT = Path(__file__).parents[2]


def test_words_of_the_page_are_all_causes() -> None:
    """The page of `status` explains every cause that its JSON can name, and no other."""
    page = (_ROOT / "docs/reference/cli/status.md").read_text()
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
    assert [counted(number, "launch") for number in (1, 2)] == ["1 launch", "2 launches"]
    for file in (_ROOT / "hpckit").rglob("*.py"):
        tree = ast.parse(file.read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found = [one for one in texts if isinstance(one, str) and re.search(r"[a-z]\(s\)", one)]
        assert not found, f"{file}: {found}"


ODD = (
    r"\b(anew|nobody|somebody|whoever|in vain|goes on|going on|went on|handed in|is said|said so|"
    r"beside|besides|as ever|for ever|to be had|likest|last word|became of|came of|all the same|"
    r"any more|janitor|feeder|so many)\b"
)
"""Words of another English, or of an earlier hpckit; docs/glossary.md has those to use."""


def _messages(tree: ast.AST) -> list[str]:
    """Return the texts of a module but for docstrings and single words."""
    bodies = (
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in docstrings
        if isinstance(node.value, str) and " " in node.value
    ]


def test_messages_are_in_plain_english() -> None:
    """No message, help text or hint uses words that readers stumble over."""
    found = {
        f"{file.relative_to(_ROOT)}: {text.strip()}"
        for file in (_ROOT / "hpckit").rglob("*.py")
        for text in _messages(ast.parse(file.read_text()))
        if re.search(ODD, text)
    }
    assert found == set()


def test_pages_are_in_plain_english() -> None:
    """Neither do the pages, but for names of tests and tables of facts."""
    found = {
        f"{page.name}: {line.strip()[:80]}"
        for page in (_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md"))
        for line in page.read_text().splitlines()
        if re.search(ODD, line)
    }
    assert found == set()
