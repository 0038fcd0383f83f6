"""The answers to requests to grow or shrink: a file for each, in the attempt's folder."""

from __future__ import annotations

import json

from hpckit.model.elastic.resize import ResizeAnswer, is_resize_id
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import make_folder, read_json, write_text


def write_resize_answer(paths: AttemptPaths, answer: ResizeAnswer) -> None:
    """Write the answer to one request; raises OSError."""
    make_folder(paths.resizes)
    text = json.dumps(to_plain(answer), separators=(",", ":")) + "\n"
    write_text(paths.resize_answer(answer.id), text, lasting=False)


def read_resize_answer(paths: AttemptPaths, name: str) -> ResizeAnswer | None:
    """Return the answer to the request with this name; None without a readable one."""
    if not is_resize_id(name):
        return None
    try:
        answer = from_plain(ResizeAnswer, read_json(paths.resize_answer(name)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return answer if answer.id == name else None
