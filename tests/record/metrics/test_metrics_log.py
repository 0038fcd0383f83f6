"""What the files of metrics promise: the last values are those of the rows, and cheap to read."""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog, describe_unreadable_rows, read_last_values
from hpckit.record.store import append_json_lines, make_private_folder, read_rows_with_offsets

ROW = st.dictionaries(st.sampled_from(("a", "b", "c")), st.integers() | st.text(max_size=3))


@dataclass(slots=True)
class Clock:
    """A clock that stands until it is moved."""

    at: float = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.at


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Return an attempt that has logged nothing."""
    return AttemptPaths(make_private_folder(tmp_path / "001"))


def values_of(attempt: AttemptPaths) -> dict[str, Any]:
    """Return the last value of each name."""
    return {name: last["value"] for name, last in read_last_values(attempt).values.items()}


def row(step: int, **values: Any) -> dict[str, Any]:
    """Return a row as a rank writes it."""
    return {"step": step, "at": "2026-01-01T00:00:00.000+00:00", **values}


def test_lines_that_no_reader_takes_are_counted(attempt: AttemptPaths) -> None:
    """Those of a script that writes Python's texts; not one that ended with its writer."""
    assert describe_unreadable_rows(attempt) == ""
    attempt.metrics.write_text('{"step": 0, "loss": 2.5}\n{"step": 1, "lo\n{"step": 2}\n')
    assert describe_unreadable_rows(attempt) == ""
    with attempt.metrics.open("a") as file:
        file.write("{'step': 3, 'loss': 1}\n" + '{"loss": tensor(0.2)}\n7\n')
    assert describe_unreadable_rows(attempt).startswith(
        "3 lines of metrics.jsonl cannot be read, from line 4"
    )


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(ROW, st.sampled_from((0.0, 2.0, 9.0)), st.booleans())))
def test_last_values_are_those_of_all_rows_whenever_the_small_file_was_written(
    rows: list[tuple[dict[str, Any], float, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is logged, at any pace and over any number of rounds, the last value is found."""
    paths, clock = AttemptPaths(make_private_folder(tmp_path_factory.mktemp("m") / "001")), Clock()
    log = MetricsLog(paths=paths, clock=clock)
    expected: dict[str, dict[str, Any]] = {}
    for step, (values, pause, new_round) in enumerate(rows):
        clock.at += pause
        log = MetricsLog(paths=paths, clock=clock) if new_round else log
        log.append_rows(row(step, **values))
        expected |= {
            name: {"value": value, "step": step, "at": row(0)["at"], "round": None, "run_step": None}
            for name, value in values.items()
        }
        assert read_last_values(paths).values == expected


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", '{"v":1}', '{"v":1,"size":7,"values":{"a":{"value":9}}}', None),
        *({"round": None}, {"round": "0"}, {"size": "1"}, {"values": []}, {"v": None}),
    ],
)
def test_last_values_are_made_again_where_the_small_file_is_damaged(
    attempt: AttemptPaths, damage: str | dict[str, Any] | None
) -> None:
    """A missing, torn or foreign file of last values costs one pass, and is never believed."""
    log = MetricsLog(paths=attempt)
    log.append_rows(row(0, a=1, b=2, round=0))
    log.append_rows(row(1, a=3, round=0))
    if damage is None:
        attempt.last_metrics.unlink()
    elif isinstance(damage, str):
        attempt.last_metrics.write_text(damage)
    else:
        kept = json.loads(attempt.last_metrics.read_text())
        kept["values"]["a"]["value"] = 9
        attempt.last_metrics.write_text(json.dumps(kept | damage))
    assert values_of(attempt) == {"a": 3, "b": 2}


@pytest.mark.parametrize("rest", ["", '{"step":0,"a":5', '{"step":0,"a":5}'])
def test_last_values_of_rows_that_shrank_are_not_believed(attempt: AttemptPaths, rest: str) -> None:
    """Where rows were cut off or put in another place, what is there counts, and no more."""
    log = MetricsLog(paths=attempt)
    log.append_rows(row(0, a=1, b=2))
    log.write_last_values()
    attempt.metrics.write_text(rest)
    assert values_of(attempt) == ({"a": 5} if rest.endswith("}") else {})


def test_reader_keeps_what_took_it_long(attempt: AttemptPaths) -> None:
    """Rows without last values are read once: what a reader found, the next one takes over."""
    line = json.dumps(row(0, loss=1.0, note="x" * 2000)) + "\n"
    attempt.metrics.write_text(line * 2500 + '{"step":7,"loss":0.5}\n{"step":8,"lo')
    assert values_of(attempt)["loss"] == 0.5
    with attempt.metrics.open("r+b") as file:
        file.write(b"#" * 100)
    assert values_of(attempt)["loss"] == 0.5
    append_json_lines(attempt.metrics, row(9, loss=0.25))
    assert read_last_values(attempt).values["loss"]["step"] == 9


def test_rows_are_read_in_bounded_memory(attempt: AttemptPaths) -> None:
    """Twenty megabytes of rows are read with less than one in memory."""
    attempt.metrics.write_text((json.dumps(row(0, note="x" * 1000)) + "\n") * 20_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows_with_offsets(attempt.metrics)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_new_round_never_reads_many_rows_before_its_first_line(attempt: AttemptPaths) -> None:
    """Where the small file is lost and rows are many, the rank goes on and leaves it to readers."""
    with attempt.metrics.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    log = MetricsLog(paths=attempt)
    log.append_rows(row(1, a=1))
    log.write_last_values()
    assert not attempt.last_metrics.exists()


def test_last_values_that_cannot_be_written_do_not_end_training(attempt: AttemptPaths) -> None:
    """A small file that cannot be replaced is left to readers, who find the rows."""
    attempt.last_metrics.mkdir()
    log = MetricsLog(paths=attempt)
    log.append_rows(row(0, a=1))
    log.write_last_values()
    assert values_of(attempt) == {"a": 1}


def test_writing_last_values_takes_a_small_share_of_the_time(attempt: AttemptPaths) -> None:
    """A hundred thousand rows in a moment write the small file once; slow writes are rarer."""

    @dataclass(slots=True)
    class Slow(Clock):
        def __call__(self) -> float:
            self.at += 1.0
            return self.at

    log = MetricsLog(paths=attempt, clock=Slow())
    written = set()
    for step in range(400):
        log.append_rows(row(step, a=step))
        written.add(attempt.last_metrics.stat().st_mtime_ns)
    assert len(written) <= 3
