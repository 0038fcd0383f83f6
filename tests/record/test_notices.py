"""Promises of record.notices: one notice for each event, sent by one process."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from hpckit.record.layout import LaunchPaths
from hpckit.record.notices import (
    STALE_S,
    begin_sending,
    delivered_to,
    end_sending,
    keep_notice,
    problems_of,
    unsent_notices,
)

KEY = "failed-00000-001"


def _race(folder: Path, start: Barrier, won: Path) -> None:
    paths = LaunchPaths(folder)
    start.wait()
    if keep_notice(paths, KEY, {"by": os.getpid()}):
        (won / f"kept-{os.getpid()}").touch()
    if begin_sending(paths.notice(KEY)):
        (won / f"sends-{os.getpid()}").touch()


def test_one_of_many_processes_keeps_and_sends(tmp_path: Path) -> None:
    """Processes that decide at the same moment: one makes the notice, one sends it."""
    context = multiprocessing.get_context("spawn")
    won = tmp_path / "won"
    won.mkdir()
    start = context.Barrier(6)
    racers = [
        context.Process(target=_race, args=(tmp_path / "launch", start, won)) for _ in range(6)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    names = sorted(path.name.partition("-")[0] for path in won.iterdir())
    assert names == ["kept", "sends"]


def test_claim_of_a_killed_sender_is_taken_over_once(tmp_path: Path) -> None:
    """A fresh claim stands; a stale one goes to the first that looks."""
    paths = LaunchPaths(tmp_path)
    assert keep_notice(paths, KEY, {})
    notice = paths.notice(KEY)
    assert begin_sending(notice)
    assert not begin_sending(notice)
    old = time.time() - STALE_S - 1
    os.utime(notice.sending, (old, old))
    assert begin_sending(notice)
    assert not begin_sending(notice)


def test_notice_is_sent_once_all_have_it(tmp_path: Path) -> None:
    """What some have is sent to the others only; what all have is never sent again."""
    paths = LaunchPaths(tmp_path)
    keep_notice(paths, KEY, {})
    notice = paths.notice(KEY)
    assert begin_sending(notice)
    end_sending(notice, {2}, all_of_them=False)
    assert delivered_to(notice) == {2}
    assert not problems_of(notice)
    assert begin_sending(notice)
    end_sending(notice, {2}, all_of_them=False, problems=["destination 1: away"])
    assert delivered_to(notice) == {2}
    assert problems_of(notice) == ("destination 1: away",)
    assert begin_sending(notice)
    end_sending(notice, {1, 2}, all_of_them=True)
    assert not begin_sending(notice)
    assert sorted(path.name for path in paths.notices.iterdir()) == [f"{KEY}.json", f"{KEY}.sent"]


def test_damaged_notice_is_passed_over(tmp_path: Path) -> None:
    """It is no reason to fail, and none to send nonsense."""
    paths = LaunchPaths(tmp_path)
    assert unsent_notices(paths) == ()
    keep_notice(paths, KEY, {"v": 1, "kind": "of a later version"})
    assert unsent_notices(paths) == ()
