"""Guards over what people read: causes that the page lists, and counts with their nouns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hpckit.model.counted import format_count
from hpckit.model.failure import Cause

_ROOT = Path(__file__).parents[2]


def test_words_of_the_page_are_all_causes() -> None:
    """The page of `status` explains every cause that its JSON can name, and no other."""
    page = (_ROOT / "docs/reference/cli/status.md").read_text()
    table = page.partition("| cause | what ended the run |\n|---|---|\n")[2].partition("\n\n")[0]
    told = [name for line in table.splitlines() for name in re.findall("`(.+?)`", line[: line.index("|", 1)])]
    assert sorted(told) == sorted(Cause)


def test_words_for_a_count_are_singular_or_plural() -> None:
    """`1 run`, `2 runs`, `0 runs`; no message leaves the choice to its reader as `run(s)`."""
    assert [format_count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [format_count(number, "launch") for number in (1, 2)] == ["1 launch", "2 launches"]
    for file in (_ROOT / "hpckit").rglob("*.py"):
        tree = ast.parse(file.read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found = [text for text in texts if isinstance(text, str) and re.search(r"[a-z]\(s\)", text)]
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


LONGEST = 35
"""Words of a sentence that a reader from abroad still follows."""


def _sentences(text: str) -> list[str]:
    """Return the sentences of a page's paragraphs, list items and table cells.

    A span of code is one word. A sentence ends at `.`, `!`, `?` or `:`, with its
    item or cell, and at a blank line.
    """
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(\|.*)$", lambda row: row[1].replace("|", "\n\n"), text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.|#+) )", text)
    return [one for block in blocks for one in re.split(r"(?<=[.!?:])[)*\"]*\s", block)]


def _too_long(text: str) -> list[str]:
    return [sentence for sentence in _sentences(text) if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST]


def test_sentences_of_the_pages_are_short() -> None:
    """No sentence has more than 35 words, so that a reader from abroad reads it once."""
    pages = (_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md"))
    found = {
        page.relative_to(_ROOT).as_posix(): long for page in pages if (long := _too_long(page.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * 36, 1),
        ("- " + "word " * 36, 1),
        ("| a |\n|---|\n| " + "word " * 36 + "|", 1),
        ("word " * 35 + "\nword " * 5, 1),
        ("word " * 30 + "end. " + "word " * 30, 0),
        ("- " + "word " * 30 + "\n- " + "word " * 30, 0),
        ("| " + "word " * 30 + "| " + "word " * 30 + "|", 0),
        ("```\n" + "word " * 36 + "\n```", 0),
        ("`" + "word " * 36 + "`", 0),
        ("[word](" + "word/" * 36 + ") " + "word " * 34, 0),
    ],
)
def test_long_sentences_are_found_where_they_are(text: str, count: int) -> None:
    """In paragraphs over several lines, items and cells; neither in code nor in addresses."""
    assert len(_too_long(text)) == count
