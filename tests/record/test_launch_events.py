"""What the events of a launch promise: nothing is lost between writers, and causes come first."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.record.launch_events import (
    Writer,
    read_merged_events,
    record_launch_event,
    refresh_nfs_listing_of_events,
    stat_events_files,
)
from hpckit.record.layout import LaunchPaths

AT = datetime(2026, 1, 1, tzinfo=UTC)
WRITERS = 3


def cancel(run: int, at: datetime = AT) -> events.CancelRequested:
    """Return an event that can be told from others."""
    return events.CancelRequested(at=at, runs=(run,))


def runs(paths: LaunchPaths) -> list[int]:
    """Return what the events tell, in order."""
    return [event.runs[0] for event in read_merged_events(paths) if isinstance(event, events.CancelRequested)]


def _record_many(folder: Path, first: int, count: int) -> None:
    for run in range(first, first + count):
        record_launch_event(LaunchPaths(folder), cancel(run))


@pytest.mark.slow
def test_processes_that_record_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each has a file of its own, and its own events stay in order."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_record_many, args=(tmp_path, 100 * number, 40)) for number in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = runs(LaunchPaths(tmp_path))
    for number in range(WRITERS):
        mine = [run for run in found if run // 100 == number]
        assert mine == list(range(100 * number, 100 * number + 40))
    assert len(list(LaunchPaths(tmp_path).events.iterdir())) == WRITERS


@settings(max_examples=40, deadline=None)
@given(
    story=st.lists(st.integers(0, WRITERS - 1), max_size=25),
    clocks=st.lists(st.integers(-500, 500), min_size=WRITERS, max_size=WRITERS),
)
def test_what_came_later_is_read_later_whatever_the_clocks(story: list[int], clocks: list[int]) -> None:
    """Writers that see each other's files are read in the order of what happened."""
    with tempfile.TemporaryDirectory() as folder:
        paths = LaunchPaths(Path(folder))
        own: dict[int, Writer] = {}
        for run, writer in enumerate(story):
            if writer not in own:
                own[writer] = Writer.create_events_file(paths)
            own[writer].append_event(cancel(run, AT + timedelta(seconds=clocks[writer])))
        assert runs(paths) == list(range(len(story)))


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    """A line cut short by a full disk, and files that are none of ours, harm no other event."""
    paths = LaunchPaths(tmp_path)
    record_launch_event(paths, cancel(0))
    (file,) = paths.events.iterdir()
    with file.open("a") as text:
        text.write('{"v":1,"event":"cancel_requ')
    (paths.events / "README").write_text("none of ours")
    record_launch_event(paths, cancel(1))
    refresh_nfs_listing_of_events(paths)
    assert runs(paths) == [0, 1]
    assert {path.name for path in paths.events.iterdir()} == {file.name, "README"}


def test_events_without_a_number_stay_behind_those_before_them(tmp_path: Path) -> None:
    """What was written by hand keeps its place in its file."""
    paths = LaunchPaths(tmp_path)
    record_launch_event(paths, cancel(0))
    (file,) = paths.events.iterdir()
    line = json.loads(file.read_text())
    for run, number in ((1, None), (2, "x"), (3, 0)):
        with file.open("a") as text:
            text.write(json.dumps({**line, "runs": [run], "n": number}) + "\n")
    assert runs(paths) == [0, 1, 2, 3]


def test_mark_changes_with_every_event(tmp_path: Path) -> None:
    """Who looks again and again reads only what is new."""
    paths = LaunchPaths(tmp_path)
    before = stat_events_files(paths)
    record_launch_event(paths, cancel(0))
    between = stat_events_files(paths)
    assert before != between == stat_events_files(paths)
    record_launch_event(paths, cancel(1))
    assert stat_events_files(paths) != between
