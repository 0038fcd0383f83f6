"""Promises of the journal: what is recorded while files do not answer, or have no room."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_disk import small_disk

from hpckit.model import events
from hpckit.model.failure import RankExit
from hpckit.model.states import RunState
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_event, read_events
from hpckit.runtime.pauses import SilenceTimer
from hpckit.runtime.supervisor.journal import FileThread, Journal, reserve_disk_for_final_events

NOW = datetime(2026, 1, 2, tzinfo=UTC)
END = events.AttemptEnded(at=NOW, state=RunState.interrupted, exit_code=143)


def warned(number: int) -> events.Warned:
    """Return a distinct event that may be left out."""
    return events.Warned(at=NOW, message=f"warning {number}")


def exited(rank: int) -> events.RankExited:
    """Return a distinct event that may not."""
    return events.RankExited(at=NOW, round=0, exit=RankExit(rank=rank, node="n1", code=1))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a small file system that a test may fill; as root only."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "fill").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def test_journal_never_waits_for_a_file_and_keeps_the_order(tmp_path: Path) -> None:
    """While a file operation hangs, events are taken in at once, and written in order later."""
    journal, hang = Journal(paths=AttemptPaths(tmp_path)), threading.Event()
    journal.files.queue_work(lambda: void(hang.wait(30)))
    for number in range(100):
        journal.record_event(exited(number))
    assert not journal.paths.events.exists()
    hang.set()
    asyncio.run(journal.await_writes())
    assert list(read_events(journal.paths.events)) == [exited(number) for number in range(100)]


def void(_: object) -> None:
    """Drop a result."""


def test_journal_leaves_out_what_can_be_done_without_and_says_so(tmp_path: Path) -> None:
    """Too much waits: warnings go, exit records never do, and the gap is said."""
    journal = Journal(paths=AttemptPaths(tmp_path), files=FileThread(most=10))
    hang, hanging = threading.Event(), threading.Event()

    def block() -> None:
        hanging.set()
        hang.wait(30)

    journal.files.queue_work(block)
    assert hanging.wait(30)
    for number in range(20):
        journal.record_event(warned(number))
        journal.record_event(exited(number))
        journal.files.queue_replaceable_work("progress", lambda: None)
    hang.set()
    asyncio.run(journal.await_writes())
    found = list(read_events(journal.paths.events))
    exits = [event for event in found if isinstance(event, events.RankExited)]
    assert exits == [exited(number) for number in range(20)]
    said = [event.message for event in found if isinstance(event, events.Warned)]
    assert said[0].startswith("15 events were left out")
    assert said[1:] == [f"warning {number}" for number in range(5)]


def test_final_event_finds_room_on_a_full_disk(full_disk: Path) -> None:
    """The reserve makes room for what could not be written before, in its order."""
    paths = AttemptPaths(full_disk)
    append_event(paths.events, warned(0))
    reserve_disk_for_final_events(paths)
    fill(full_disk)
    journal = Journal(paths=paths)
    # The rest of the file's last page is room, too.
    many = [exited(number) for number in range(40)]
    for event in many:
        journal.record_event(event)
    asyncio.run(journal.await_writes())
    assert list(read_events(paths.events)) != [warned(0), *many]
    asyncio.run(journal.record_attempt_end(END))
    assert list(read_events(paths.events)) == [warned(0), *many, END]
    assert not paths.reserve.exists()


def test_final_event_is_written_alone_where_there_is_no_room_for_more(full_disk: Path) -> None:
    """Of all that is recorded, how the attempt ended is worth most."""
    paths = AttemptPaths(full_disk)
    append_event(paths.events, warned(0))
    reserve_disk_for_final_events(paths)
    fill(full_disk)
    journal = Journal(paths=paths)
    for number in range(900):
        journal.record_event(exited(number))
    asyncio.run(journal.record_attempt_end(END))
    assert END in list(read_events(paths.events))


@given(ticks=st.lists(st.floats(0.0, 0.9), max_size=30), slept=st.floats(10, 1e6))
def test_silence_forgets_what_the_listener_slept_through(ticks: list[float], slept: float) -> None:
    """However long a process stood still, that adds two ticks at most."""
    silence, at = SilenceTimer(tick_s=1.0), 0.0
    silence.measure_silence(at)
    for tick in ticks:
        at += tick
        silence.measure_silence(at)
    before = silence.silent_s
    assert before == pytest.approx(sum(ticks))
    assert silence.measure_silence(at + slept) == pytest.approx(before + 2.0)
    silence.reset_on_message()
    assert silence.silent_s == 0.0
