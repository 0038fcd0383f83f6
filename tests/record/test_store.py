"""Promises of record.store: a damaged or strange file costs what it holds, nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpckit.record.store import read_json, read_lines

DEEP = 100_000


@pytest.mark.parametrize("depth", [60, 900, DEEP])
@pytest.mark.parametrize("signs", ["[]", "{}"], ids=["lists", "objects"])
def test_lines_that_are_nested_too_deeply_are_passed_over(
    tmp_path: Path, depth: int, signs: str
) -> None:
    """A line that is nested deeper than anything hpckit writes is damaged, as a torn one is."""
    opening = "[" if signs == "[]" else '{"a":'
    deep = f'{{"deep":{opening * depth}1{signs[1] * depth}}}'
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{{"step":1}}\n{deep}\n{{"step":2}}\n')
    assert list(read_lines(file)) == [{"step": 1}, {"step": 2}]


def test_lines_that_are_long_or_hold_brackets_in_texts_are_read(tmp_path: Path) -> None:
    """Many brackets side by side, or in texts, are no depth."""
    records = [{"wide": [[1]] * 500}, {"text": '[{"' * 500}, {"quoted": '\\"[' * 200}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    assert list(read_lines(file)) == records


def test_json_that_is_nested_too_deeply_is_a_value_error(tmp_path: Path) -> None:
    """A document that no reader can walk through is refused as any damaged one is."""
    file = tmp_path / "deep.json"
    file.write_text("[" * DEEP + "]" * DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(file)


def test_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """What is no file cannot be read, and holds nobody up."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_json(tmp_path / "pipe")
