"""What became of each item, as a JSON file and as one page of text. Pure, but for `write`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_check.recording import hidden

_WIDTH = 110
JSON_FILE, PAGE_FILE = "gpu-check.json", "gpu-check.txt"
_OWN_FOLDERS = (f"{Path(__file__).resolve().parents[2]}/", f"{sys.prefix}/")
"""The checkout and the environment: left out where a log names them."""


class State(StrEnum):
    """How an item ended."""

    passed = "passed"
    failed = "failed"
    not_run = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An item: what was measured, what was expected of it, and the reason if it did not pass.

    `figures` are the lines of the page; `left_out` what this machine could not run, with reasons.
    """

    item: str
    state: State
    seconds: float
    measured: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    figures: Sequence[str] = ()
    left_out: Sequence[str] = ()


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 if an item failed, 2 if none passed, else 0."""
    if any(result.state is State.failed for result in results):
        return 1
    return 0 if any(result.state is State.passed for result in results) else 2


def document(machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Return the content of the JSON file."""
    return {"v": 1, "machine": dict(machine), "items": [asdict(result) for result in results]}


def page(machine: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the page: a line for each item, its figures, and what is wrong."""
    lines = [f"GPU check, {machine.get('at', 'time unknown')}"]
    lines += _wrapped("machine: " + ", ".join(_machine_words(machine)), "")
    counts = {state: sum(result.state is state for result in results) for state in State}
    lines += [", ".join(f"{count} {state.value}" for state, count in counts.items()), ""]
    for result in results:
        said = result.state.value.upper() if result.state is State.failed else result.state.value
        lines.append(f"{said:8} {result.item:12} {result.seconds:5.0f} s")
        lines += _wrapped(result.reason, " " * 9)
        for figure in result.figures:
            lines += _wrapped(figure, " " * 9)
        for left in result.left_out:
            lines += _wrapped(f"left out: {left}", " " * 9)
    return "\n".join(lines) + "\n"


def _machine_words(machine: Mapping[str, Any]) -> list[str]:
    return [f"{key} {value}" for key, value in machine.items() if key != "at" and value is not None]


def _wrapped(text: str, margin: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=margin, subsequent_indent=margin + "  ", break_long_words=False
    )


def write(folder: Path, machine: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write both files, without UUIDs, addresses and folders of this machine; replaces others."""
    text = json.dumps(document(machine, results), indent=1, default=str) + "\n"
    for name, content in ((JSON_FILE, text), (PAGE_FILE, page(machine, results))):
        part = folder / f".{name}.part"
        checkout, prefix = _OWN_FOLDERS
        shown = hidden(content.replace(checkout, "").replace(prefix, ""))
        part.write_text(shown, encoding="utf-8")
        part.replace(folder / name)
