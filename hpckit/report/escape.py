"""Text of others made harmless for a terminal: control characters are shown, not obeyed.

Responsible for what counts as such, for everything that is printed; pure, it must not print. What a
user's program printed itself (`logs` of one's own runs) is passed on as it is.
"""

from __future__ import annotations

import re

_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of characters, which no terminal can be sent
)
_OBEYED = re.compile(f"[{_CONTROLS}]")
_OBEYED_IN_CELLS = re.compile(f"[{_CONTROLS}\t\n]")
_NAMES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escaped(text: str) -> str:
    r"""Return text with what a terminal would obey as `\x1b` or `\u202e`; lines stay lines."""
    return _OBEYED.sub(_shown, text)


def escaped_cell(text: str) -> str:
    """Return the same in one line, for tables."""
    return _OBEYED_IN_CELLS.sub(_shown, text)


def escaped_json(document: str) -> str:
    """Return a JSON document with such characters as JSON writes them: it means the same."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def shortened(text: str, most: int) -> str:
    """Return at most so many characters of a text, with a sign where more was said."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMES.get(found[0]) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004  # one byte
