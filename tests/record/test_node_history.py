"""Promises about the file of incidents: each run its own, damaged or foreign lines do no harm."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hpckit.model.nodes import IncidentKind, NodeIncident
from hpckit.record import node_history
from hpckit.record.node_history import (
    append_node_incident,
    explain_unused_node_history,
    forget_node_incidents,
    node_history_folder,
    read_node_incidents,
    remove_old_history_files,
)

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


def incident(node: str, run: str = "a-1.0", at: datetime = NOON) -> NodeIncident:
    """Return an incident."""
    return NodeIncident(node=node, at=at, kind=IncidentKind.lost, run=run, message="silent")


def test_what_was_appended_is_read_of_all_runs(tmp_path: Path) -> None:
    """The folder and its files are the user's alone."""
    for one in (incident("n1"), incident("n2"), incident("n1", "b-1.3")):
        append_node_incident(tmp_path, one)
    assert sorted((one.node, one.run) for one in read_node_incidents(tmp_path)) == [
        ("n1", "a-1.0"),
        ("n1", "b-1.3"),
        ("n2", "a-1.0"),
    ]
    assert node_history_folder(tmp_path).stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in node_history_folder(tmp_path).iterdir())


def test_forgotten_node_counts_from_then_on(tmp_path: Path) -> None:
    """What happened before is gone, what happens after a repair is not."""
    append_node_incident(tmp_path, incident("n1"))
    append_node_incident(tmp_path, incident("n2"))
    forget_node_incidents(tmp_path, "n1", NOON + timedelta(minutes=1))
    assert [one.node for one in read_node_incidents(tmp_path)] == ["n2"]
    append_node_incident(tmp_path, incident("n1", at=NOON + timedelta(hours=1)))
    assert sorted(one.node for one in read_node_incidents(tmp_path)) == ["n1", "n2"]


def test_damaged_files_cost_their_lines_alone(tmp_path: Path) -> None:
    """Torn lines, other JSON, deep JSON, a pipe, a folder: the rest is read, nothing waits."""
    append_node_incident(tmp_path, incident("n1"))
    folder = node_history_folder(tmp_path)
    (folder / "torn.jsonl").write_text('{"node": "n9", "at"\n[1]\n{"node": 3}\n' + "[" * 10**5)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    assert [one.node for one in read_node_incidents(tmp_path)] == ["n1"]
    assert read_node_incidents(tmp_path / "nowhere") == ()


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_another_users_word_is_not_taken(tmp_path: Path) -> None:
    """Neither a file nor a folder that belongs to somebody else makes a launch avoid nodes."""
    append_node_incident(tmp_path, incident("n1"))
    (file,) = node_history_folder(tmp_path).iterdir()
    os.chown(file, 65534, 65534)
    assert read_node_incidents(tmp_path) == ()
    os.chown(file, 0, 0)
    os.chown(node_history_folder(tmp_path), 65534, 65534)
    assert read_node_incidents(tmp_path) == ()


def test_old_files_are_removed(tmp_path: Path) -> None:
    """The folder stays small; what was forgotten stays known."""
    append_node_incident(tmp_path, incident("n1"))
    append_node_incident(tmp_path, incident("n2", "b-1.0"))
    forget_node_incidents(tmp_path, "n2", NOON)
    old = (node_history_folder(tmp_path) / "a-1.0.jsonl", node_history_folder(tmp_path) / "forgotten.jsonl")
    for file in old:
        os.utime(file, (0, 0))
    remove_old_history_files(tmp_path, NOON)
    assert sorted(one.name for one in node_history_folder(tmp_path).iterdir()) == [
        "b-1.0.jsonl",
        "forgotten.jsonl",
    ]


def test_latest_incidents_of_a_long_run_are_read(tmp_path: Path) -> None:
    """Of a file above a megabyte the end counts, from the first whole line on."""
    for place in range(40):
        long = replace(incident(f"n{place}"), message="x" * 40_000)
        append_node_incident(tmp_path, long)
    found = [one.node for one in read_node_incidents(tmp_path)]
    assert found[-1] == "n39"
    assert 20 < len(found) < 40


def test_latest_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many runs those that something happened to last, whatever their names."""
    monkeypatch.setattr(node_history, "_MOST_FILES", 2)
    for place, run in enumerate("zayb"):
        append_node_incident(tmp_path, incident(f"n{place}", run))
        os.utime(node_history_folder(tmp_path) / f"{run}.jsonl", (place, place))
    assert {one.node for one in read_node_incidents(tmp_path)} == {"n2", "n3"}


def test_times_without_a_zone_are_damaged_lines(tmp_path: Path) -> None:
    """They cannot be compared with others."""
    append_node_incident(tmp_path, incident("n1"))
    folder = node_history_folder(tmp_path)
    with (folder / "a-1.0.jsonl").open("a") as file:
        file.write('{"node":"n2","at":"2026-11-25T00:00:00","kind":"lost","run":"a","message":""}\n')
    (folder / "forgotten.jsonl").write_text(
        '{"node":"n1","at":"2099-11-25T00:00:00"}\n{"node":"n3","at":"2026-01-01T00:00:00+00:00"}\n'
    )
    assert [one.node for one in read_node_incidents(tmp_path)] == ["n1"]


def test_first_incident_of_a_run_is_told(tmp_path: Path) -> None:
    """Then old files are removed, a few at once."""
    assert append_node_incident(tmp_path, incident("n1"))
    assert not append_node_incident(tmp_path, incident("n1"))
    for run in "bcd":
        append_node_incident(tmp_path, incident("n1", run))
    for file in node_history_folder(tmp_path).iterdir():
        os.utime(file, (0, 0))
    remove_old_history_files(tmp_path, NOON, most=3)
    assert len(list(node_history_folder(tmp_path).iterdir())) == 1


def test_history_that_is_not_used_says_why(tmp_path: Path) -> None:
    """Which folder, why, and what to do; nothing is said of one that is not there."""
    assert explain_unused_node_history(tmp_path) is None
    append_node_incident(tmp_path, incident("n1"))
    assert explain_unused_node_history(tmp_path) is None
    folder = node_history_folder(tmp_path)
    folder.chmod(0o770)
    assert explain_unused_node_history(tmp_path) == (
        f"the history of nodes in {folder} is not used, because others may write to it; chmod go-w {folder}"
    )
    if os.getuid() == 0:
        os.chown(folder, 65534, -1)
        assert "belongs to user 65534" in str(explain_unused_node_history(tmp_path))
        os.chown(folder, 0, -1)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert "not a real folder" in str(explain_unused_node_history(tmp_path))


def test_folder_that_is_a_link_or_open_to_others_is_not_used(tmp_path: Path) -> None:
    """A link could lead anywhere, and others could put links into an open folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    node_history_folder(tmp_path).symlink_to(elsewhere)
    with pytest.raises(PermissionError):
        append_node_incident(tmp_path, incident("n1"))
    assert not list(elsewhere.iterdir())
    node_history_folder(tmp_path).unlink()
    append_node_incident(tmp_path, incident("n1"))
    node_history_folder(tmp_path).chmod(0o777)
    with pytest.raises(PermissionError):
        append_node_incident(tmp_path, incident("n1"))
    assert read_node_incidents(tmp_path) == ()
