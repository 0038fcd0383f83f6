"""Promises of reading a trace in features.profiling.operations."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.profiling import operations as trace_file
from hpckit.features.profiling.operations import TraceTooLargeError, read_trace_events

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
EVENTS = st.lists(st.dictionaries(TEXT, st.one_of(TEXT, st.floats(allow_nan=False))), max_size=6)


def write(path: Path, text: str) -> Path:
    """Write a compressed file."""
    path.write_bytes(gzip.compress(text.encode()))
    return path


@given(events=EVENTS, indent=st.sampled_from([None, 1]), chunk=st.integers(1, 40))
def test_every_event_is_read_wherever_chunks_end(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], indent: int | None, chunk: int
) -> None:
    """Also where a string holds what looks like the end."""
    head = {"schemaVersion": 1, "trace_id": "}]"}
    text = json.dumps({**head, "traceEvents": events, "more": [{}]}, indent=indent)
    path = write(tmp_path_factory.mktemp("trace") / "t.json.gz", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_file, "_CHUNK", chunk)
        assert list(read_trace_events(path)) == events


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [{"a": 1},', '{"traceEvents": [x]}']
)
def test_damaged_trace_is_an_error(tmp_path: Path, text: str) -> None:
    """It says so, and does not wait or run out of memory."""
    with pytest.raises(ValueError, match=r"damaged|no list of events"):
        list(read_trace_events(write(tmp_path / "t.json.gz", text)))


def test_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    """As is one that is not compressed."""
    path = write(tmp_path / "t.json.gz", '{"traceEvents": []}')
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged"):
        list(read_trace_events(path))
    path.write_text("{}")
    with pytest.raises(OSError, match="gzip"):
        list(read_trace_events(path))


def test_trace_that_grows_when_unpacked_is_not_read_whole(tmp_path: Path) -> None:
    """A megabyte may become a thousand."""
    path = write(tmp_path / "t.json.gz", '{"traceEvents": [' + " " * (5 << 20))
    with pytest.raises(TraceTooLargeError, match="more than 2 MiB"):
        list(read_trace_events(path, most=2 << 20))
