"""Promises of reading torch's dumps: plain values alone, from our own files alone."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.record.layout import RoundPaths
from hpckit.runtime.agent import collective_statements
from hpckit.runtime.agent.collective_statements import (
    CollectiveStatements,
    TraceFileError,
    parse_plain_pickle,
    read_flight_recorder_dump,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=30,
)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (open, (self.file, "w"))


@given(plain, st.integers(2, 5))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    """Of every protocol that torch may write."""
    assert parse_plain_pickle(pickle.dumps(value, protocol)) == value


@settings(deadline=None)
@given(st.binary(max_size=200), plain, st.data())
def test_torn_and_wrong_files_are_refused_in_one_way(noise: bytes, value: Any, data: st.DataObject) -> None:
    """Whatever the bytes are: a value, or TraceFileError."""
    whole = pickle.dumps(value, 2)
    cut = data.draw(st.integers(0, len(whole)))
    for text in (noise, whole[:cut], whole[:cut] + noise, b"\x80\x02" + noise + b"."):
        with contextlib.suppress(TraceFileError):
            parse_plain_pickle(text)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_a_class_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    """Nothing is called, imported or looked up."""
    trap = tmp_path / "sprung"
    with pytest.raises(TraceFileError, match="no plain pickle"):
        parse_plain_pickle(pickle.dumps({"entries": [Trap(str(trap))]}, protocol))
    assert not trap.exists()


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of a place in memory costs nothing, and what is too long ends."""
    with pytest.raises(TraceFileError):
        parse_plain_pickle(b"\x80\x02]r\xff\xff\xff\x7fj\xfe\xff\xff\x7f.")
    monkeypatch.setattr(collective_statements, "MOST_WORDS", 100)
    with pytest.raises(TraceFileError, match="too long"):
        parse_plain_pickle(pickle.dumps(list(range(200)), 2))


def test_only_own_files_in_own_folders_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may write neither the file nor its folder; a link, a pipe and a giant are no dumps."""
    tmp_path.chmod(0o700)
    file = tmp_path / "nccl-trace-rank-0"
    file.write_bytes(pickle.dumps({"version": "2.10"}, 2))
    file.chmod(0o600)
    assert read_flight_recorder_dump(file) == {"version": "2.10"}
    file.chmod(0o622)
    with pytest.raises(TraceFileError, match="others can write"):
        read_flight_recorder_dump(file)
    file.chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(TraceFileError, match="others can write"):
        read_flight_recorder_dump(file)
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="link"):
        read_flight_recorder_dump(tmp_path / "link")
    monkeypatch.setattr(collective_statements, "MOST_TRACE_BYTES", 5)
    with pytest.raises(TraceFileError, match="larger than"):
        read_flight_recorder_dump(file)


def test_what_nccl_left_is_read_and_kept_as_json(tmp_path: Path) -> None:
    """The dump of an ended rank becomes its statement; a wrong one becomes none."""
    tmp_path.chmod(0o700)
    paths = RoundPaths(tmp_path)
    entry = {
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 128,
        "state": "started",
        "is_p2p": False,
        "input_sizes": ((1024,),),
        "input_dtypes": ["Float"],
        "frames": [{"filename": "/home/a/train.py", "line": 88, "name": "main"}],
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    dump = {"version": "2.4", "pg_config": config, "entries": [entry]}
    paths.nccl_trace(1).write_bytes(pickle.dumps(dump, 2))
    paths.nccl_trace(2).write_bytes(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    for rank in (1, 2):
        paths.nccl_trace(rank).chmod(0o600)
    statements = CollectiveStatements(paths=paths, node="n7")
    found = statements.read_collectives_left_by_rank(1)
    assert found is not None
    assert (found.rank, found.node, found.groups[0].ranks) == (1, "n7", "0-2")
    assert found.entries[0].place == "train.py:88 in main"
    assert paths.rank_collectives_file(1).exists()
    assert statements.read_collectives_left_by_rank(2) is None
    assert statements.read_collectives_left_by_rank(3) is None
    assert not (tmp_path / "sprung").exists()
