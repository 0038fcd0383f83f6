"""Promises of report.escape: nothing that a terminal would obey is left, and nothing is lost."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hpckit.report.escape import escape_controls, escape_json, escape_table_cell, shorten_text

TEXTS = st.text(st.characters())


@given(TEXTS)
def test_escaped_text_has_no_control_character(text: str) -> None:
    """Of all control characters only tab and newline are left, and in cells not even those."""
    left = {sign for sign in escape_controls(text) if unicodedata.category(sign) in {"Cc", "Cs"}}
    assert left <= {"\t", "\n"}
    assert all(unicodedata.category(sign) not in {"Cc", "Cs", "Zl"} for sign in escape_table_cell(text))


@given(TEXTS)
def test_escaped_text_turns_no_direction(text: str) -> None:
    """No sign is left that makes text read differently from how it is stored."""
    turning = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    assert all(unicodedata.bidirectional(sign) not in turning for sign in escape_controls(text))


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_harmless_text_stays_as_it_is(text: str) -> None:
    """Text of printable characters is not touched."""
    assert escape_controls(text) == escape_table_cell(text) == text


def test_letters_of_every_script_stay_as_they_are() -> None:
    """What is printable is shown, in whatever script."""
    text = "größer Ελλάδα עברית 数据 🙂"
    assert escape_controls(text) == text


@given(st.dictionaries(TEXTS, TEXTS))
def test_escaped_json_means_the_same(value: dict[str, str]) -> None:
    """The document reads back to exactly what it said."""
    document = escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(document) == value
    assert document.isascii() or all(unicodedata.category(one) != "Cs" for one in document)


@given(TEXTS, st.integers(1, 50))
def test_shortened_text_says_that_more_was_said(text: str, most: int) -> None:
    """Cut text is no longer than asked for and ends with a sign; short text stays."""
    cut = shorten_text(text, most)
    assert len(cut) <= most
    assert cut == text if len(text) <= most else cut.endswith("…")
