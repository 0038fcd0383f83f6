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
    claim_notice_sending,
    read_delivered_destination_indices,
    read_notice_sending_problems,
    read_unsent_user_notices,
    record_notice_delivery,
    write_user_notice,
)

KEY = "failed-00000-001"


def _race(folder: Path, start: Barrier, won: Path) -> None:
    paths = LaunchPaths(folder)
    start.wait()
    if write_user_notice(paths, KEY, {"by": os.getpid()}):
        (won / f"kept-{os.getpid()}").touch()
    if claim_notice_sending(paths.notice(KEY)):
        (won / f"sends-{os.getpid()}").touch()


def test_one_of_many_processes_keeps_and_sends(tmp_path: Path) -> None:
    """Processes that decide at the same moment: one makes the notice, one sends it."""
    context = multiprocessing.get_context("spawn")
    won = tmp_path / "won"
    won.mkdir()
    start = context.Barrier(6)
    racers = [context.Process(target=_race, args=(tmp_path / "launch", start, won)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    names = sorted(path.name.partition("-")[0] for path in won.iterdir())
    assert names == ["kept", "sends"]


def test_claim_of_a_killed_sender_is_taken_over_once(tmp_path: Path) -> None:
    """A fresh claim stands; a stale one goes to the first that looks."""
    paths = LaunchPaths(tmp_path)
    assert write_user_notice(paths, KEY, {})
    notice = paths.notice(KEY)
    assert claim_notice_sending(notice)
    assert not claim_notice_sending(notice)
    old = time.time() - STALE_S - 1
    os.utime(notice.sending_claim_file, (old, old))
    assert claim_notice_sending(notice)
    assert not claim_notice_sending(notice)


def test_notice_is_sent_once_all_have_it(tmp_path: Path) -> None:
    """What some have is sent to the others only; what all have is never sent again."""
    paths = LaunchPaths(tmp_path)
    write_user_notice(paths, KEY, {})
    notice = paths.notice(KEY)
    assert claim_notice_sending(notice)
    record_notice_delivery(notice, {2}, all_of_them=False)
    assert read_delivered_destination_indices(notice) == {2}
    assert not read_notice_sending_problems(notice)
    assert claim_notice_sending(notice)
    record_notice_delivery(notice, {2}, all_of_them=False, problems=["destination 1: away"])
    assert read_delivered_destination_indices(notice) == {2}
    assert read_notice_sending_problems(notice) == ("destination 1: away",)
    assert claim_notice_sending(notice)
    record_notice_delivery(notice, {1, 2}, all_of_them=True)
    assert not claim_notice_sending(notice)
    assert sorted(path.name for path in paths.notices.iterdir()) == [f"{KEY}.json", f"{KEY}.sent"]


def test_damaged_notice_is_passed_over(tmp_path: Path) -> None:
    """It is no reason to fail, and none to send nonsense."""
    paths = LaunchPaths(tmp_path)
    assert read_unsent_user_notices(paths) == ()
    write_user_notice(paths, KEY, {"v": 1, "kind": "of a later version"})
    assert read_unsent_user_notices(paths) == ()
