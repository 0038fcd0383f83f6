"""Makes untrusted text safe for a terminal: control characters are shown, not interpreted.

Pure. Everything that hpckit prints uses these rules. Output of the user's own program (`logs` of
one's own runs) is passed on unchanged.
"""

from __future__ import annotations

import re

from hpckit.model.plain import is_number_text
from hpckit.patterns import lazy_pattern

_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of surrogate pairs, which cannot be sent to a terminal
)
_OBEYED = lazy_pattern(f"[{_CONTROLS}]")
_OBEYED_IN_CELLS = lazy_pattern(f"[{_CONTROLS}\t\n]")
_LOOKS_ESCAPED = lazy_pattern(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|[tnr])")
_COMPUTED = lazy_pattern("'*[=+\\-@\uff1d\uff0b\uff0d\uff20]")
"""How a cell begins that a spreadsheet computes, also in full width; or one of `guarded`."""
_NAMES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape_controls(text: str) -> str:
    r"""Return text with control characters shown as `\x1b` or `\u202e`; lines stay lines."""
    return _OBEYED.sub(_escape_character, text)


def escape_table_cell(text: str) -> str:
    """Return the same on one line, for tables."""
    return _OBEYED_IN_CELLS.sub(_escape_character, text)


def escape_name(text: str) -> str:
    r"""Return a name on one line, so that different names stay different.

    A backslash that would read as the beginning of an escape is `\x5c`; any other one stays.
    """
    return escape_table_cell(_LOOKS_ESCAPED.sub(r"\\x5c", text))


def guard_csv_cell_against_formulas(cell: str) -> str:
    """Return a text for CSV with an apostrophe in front if a spreadsheet would compute it.

    Numbers, also `-inf`, stay as they are. Different texts stay different.

    ```python
    guarded("=1+1")  # '=1+1
    ```
    """
    return f"'{cell}" if _COMPUTED.match(cell) and not is_number_text(cell) else cell


def escape_json(document: str) -> str:
    """Return a JSON document with control characters escaped; its meaning is unchanged."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def shorten_text(text: str, most: int) -> str:
    """Return at most `most` characters of a text, with an ellipsis if it was longer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _escape_character(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMES.get(found[0]) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004  # one byte
