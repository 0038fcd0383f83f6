"""Promises of record.store: a damaged or strange file costs what it holds, nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.events import VERSION, CheckpointSaved, RankExited, Warned, decode_event
from hpckit.record.store import read_events, read_json, read_json_lines

DEEP = 100_000


@pytest.mark.parametrize("depth", [60, 900, DEEP])
@pytest.mark.parametrize("signs", ["[]", "{}"], ids=["lists", "objects"])
def test_lines_that_are_nested_too_deeply_are_passed_over(tmp_path: Path, depth: int, signs: str) -> None:
    """A line that is nested deeper than anything hpckit writes is damaged, as a torn one is."""
    opening = "[" if signs == "[]" else '{"a":'
    deep = f'{{"deep":{opening * depth}1{signs[1] * depth}}}'
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{{"step":1}}\n{deep}\n{{"step":2}}\n')
    assert list(read_json_lines(file)) == [{"step": 1}, {"step": 2}]


def test_lines_that_are_long_or_hold_brackets_in_texts_are_read(tmp_path: Path) -> None:
    """Many brackets side by side, or in texts, are no depth."""
    records = [{"wide": [[1]] * 500}, {"text": '[{"' * 500}, {"quoted": '\\"[' * 200}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(read_json_lines(file)) == records


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


NUMEROUS = frozenset({CheckpointSaved.kind, RankExited.kind})
SAVED = (
    f'{{"v":{VERSION},"event":"{CheckpointSaved.kind}","at":"2026-01-01T00:00:00.000+00:00",'
    '"round":0,"step":7,"size":1,"stall_s":0.1,"duration_s":2.0}'
).encode()
WARNED = SAVED.replace(CheckpointSaved.kind.encode(), Warned.kind.encode())
PIECES = (
    b',"event":"warned"',
    b',"\\u0065vent":"warned"',
    b',"message":"\\"event\\":"',
    b',"message":"lost"',
    b',"inner":{"event":"warned"}',
    b"}",
    b"\xff",
    b"\0",
    b"\n",
    b" ",
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a line of an event, perhaps cut off, perhaps with something put in."""
    line = draw(st.sampled_from((SAVED, WARNED, WARNED[:-1] + PIECES[3] + b"}")))
    for piece in draw(st.lists(st.sampled_from(PIECES), max_size=2)):
        at = draw(st.just(len(line) - 1) | st.integers(0, len(line)))
        line = line[:at] + piece + line[at:]
    return line[: draw(st.just(len(line)) | st.integers(0, len(line)))]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(lines=st.lists(damaged(), max_size=5), end=st.sampled_from((b"", b"\n")))
def test_events_of_a_kind_left_out_unparsed_are_those_left_out_parsed(
    lines: list[bytes], end: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the lines hold, whole or damaged, the same events are found as by parsing all."""
    file = tmp_path_factory.mktemp("events") / "events.jsonl"
    file.write_bytes(b"\n".join(lines) + end)
    wanted = (record for record in read_json_lines(file) if record.get("event") not in NUMEROUS)
    expected = [event for event in map(decode_event, wanted) if event is not None]
    assert list(read_events(file, without=NUMEROUS)) == expected


def test_saves_of_a_month_are_not_parsed_by_who_does_not_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a run that has saved for a month parses a handful of lines."""
    file, parsed = tmp_path / "events.jsonl", list[bytes]()
    whole = WARNED[:-1] + PIECES[3] + b"}\n"
    file.write_bytes(whole + (SAVED + b"\n") * 1000 + whole)
    parse = json.loads

    def counted(line: bytes) -> Any:
        parsed.append(line)
        return parse(line)

    monkeypatch.setattr("hpckit.record.store.json.loads", counted)
    assert len(list(read_events(file, without=NUMEROUS))) == len(parsed) == 2
