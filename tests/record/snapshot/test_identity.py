"""Promises of record.identity: what was computed already, and by which code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpckit.model import events
from hpckit.model.states import RunState
from hpckit.record.launches import Launch
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.snapshot.git import GitState
from hpckit.record.snapshot.identity import (
    compute_code_identity,
    find_launches_with_signatures,
    has_latest_attempt_completed,
    read_frozen_identity,
)
from hpckit.record.store import append_event, append_json_lines, make_private_folder

Frozen = Callable[..., Launch]

AT = datetime(2026, 1, 1, tzinfo=UTC)
COMPLETED = events.AttemptEnded(at=AT, state=RunState.completed, exit_code=0, failure=None)
FAILED = replace(COMPLETED, state=RunState.failed, exit_code=1)


def end(launch: Launch, attempt: int, event: events.Event) -> None:
    """Let an attempt of the first run say a final event."""
    paths = launch.paths.run(0).attempt(attempt)
    make_private_folder(paths.folder)
    append_event(paths.events, events.Warned(at=AT, message="x" * 100_000))
    append_event(paths.events, event)


def test_holdings_are_the_launches_with_wanted_signatures_newest_first(frozen: Frozen, outputs: Path) -> None:
    """Each with the indices of those runs; a launch without any is left out."""
    old, new = frozen(3, mark="aa"), frozen(2, seconds=5, mark="bb")
    first, _, third = (run.signature for run in old.runs)
    found = list(find_launches_with_signatures(outputs, {first, third}))
    assert [one.paths.folder for one in found] == [new.folder, old.folder]
    assert [dict(one.runs) for one in found] == [{first: [0]}, {first: [0], third: [2]}]
    assert found[1].find_runs_with_signatures({third}) == (2,)
    assert list(find_launches_with_signatures(outputs, {"no such"})) == []


@pytest.mark.parametrize("damage", ["missing", "not text"])
def test_a_launch_without_readable_signatures_holds_nothing(
    frozen: Frozen, outputs: Path, damage: str
) -> None:
    """A damaged file of another launch never keeps a new one from starting."""
    launch = frozen(2)
    launch.paths.signatures.unlink()
    if damage == "not text":
        launch.paths.signatures.write_bytes(b"\xff\xfe")
    assert list(find_launches_with_signatures(outputs, {launch.runs[1].signature})) == []


def test_run_has_ended_well_when_its_latest_attempt_says_so(frozen: Frozen) -> None:
    """The final event counts: of the latest attempt, and a whole line."""
    launch = frozen()
    assert not has_latest_attempt_completed(launch.paths, 0)
    end(launch, 1, FAILED)
    assert not has_latest_attempt_completed(launch.paths, 0)
    end(launch, 2, COMPLETED)
    assert has_latest_attempt_completed(launch.paths, 0)
    end(launch, 10, FAILED)
    assert not has_latest_attempt_completed(launch.paths, 0)
    append_json_lines(launch.paths.run(0).attempt(10).events, {"event": "attempt_ended"})
    assert not has_latest_attempt_completed(launch.paths, 0)


def test_code_is_known_again_when_frozen(frozen: Frozen, snapshot: CodeSnapshot) -> None:
    """The same project gives the identity that was frozen."""
    launch = frozen()
    assert compute_code_identity(snapshot) == read_frozen_identity(launch.paths)
    launch.paths.code_record.unlink()
    assert read_frozen_identity(launch.paths) is None


def test_code_is_another_one_when_a_file_a_link_or_the_place_differs(snapshot: CodeSnapshot) -> None:
    """What is run, and from where, is the identity; who asks, and when, is not."""
    files = snapshot.files or ()
    link = CodeFile(path="link", size=0, executable=False, link="sub")
    others = [
        replace(snapshot, working_dir="."),
        replace(snapshot, python_path=("sub",)),
        replace(snapshot, files=(*files, link)),
        replace(snapshot, files=(*files, replace(link, link="elsewhere"))),
        replace(snapshot, files=()),
    ]
    before = compute_code_identity(snapshot)
    assert before == compute_code_identity(replace(snapshot, git=None))
    (snapshot.root / "sub" / "train.py").write_text("print(1)\n")
    identities = [before, compute_code_identity(snapshot), *map(compute_code_identity, others)]
    assert len(set(identities)) == len(identities)


def test_code_is_another_one_if_a_program_is_none_or_a_link_leads_to_other_data(
    snapshot: CodeSnapshot, tmp_path: Path
) -> None:
    """Of a file outside the project, size and time stand for its content."""
    outside = tmp_path / "outside.csv"
    outside.write_text("1")
    (snapshot.root / "data.csv").symlink_to(outside)
    first, *others = snapshot.files or ()
    link = CodeFile(path="data.csv", size=0, executable=False, link=str(outside))
    linked = replace(snapshot, files=(first, *others, link))
    turned = replace(snapshot, files=(replace(first, executable=not first.executable), *others))
    known = [compute_code_identity(one) for one in (snapshot, turned, linked)]
    assert compute_code_identity(linked) == known[-1]
    outside.write_text("22")
    known.append(compute_code_identity(linked))
    assert len(set(known)) == 4


def test_code_is_another_one_if_a_link_leads_to_an_ignored_file_that_changed(snapshot: CodeSnapshot) -> None:
    """It is in the project, and not among the files that are frozen."""
    target = snapshot.root / "local" / "settings.py"
    target.parent.mkdir()
    target.write_text("1")
    (snapshot.root / "settings.py").symlink_to(target)
    link = CodeFile(path="settings.py", size=0, executable=False, link=str(target))
    linked = replace(snapshot, files=(*(snapshot.files or ()), link))
    before = compute_code_identity(linked)
    target.write_text("22")
    assert compute_code_identity(linked) != before
    written = replace(link, path="last.json", link=str(target.with_suffix(".json")))
    target.with_suffix(".json").write_text("1")
    (snapshot.root / "last.json").symlink_to(target.with_suffix(".json"))
    linked = replace(linked, files=(*(linked.files or ()), written))
    before = compute_code_identity(linked)
    target.with_suffix(".json").write_text("22")
    assert compute_code_identity(linked) == before  # a run may have written it


def test_code_without_a_snapshot_is_the_commit_and_its_diff(snapshot: CodeSnapshot) -> None:
    """Where there is no commit, nobody can tell."""
    state = GitState(commit="c1", branch="main", dirty=False, diff="")
    bare = replace(snapshot, files=None)
    known = [
        compute_code_identity(replace(bare, git=one))
        for one in (state, replace(state, commit="c2"), replace(state, diff="+x", dirty=True))
    ]
    assert len({*known, None}) == 4
    assert compute_code_identity(replace(bare, git=replace(state, branch="other"))) == known[0]
    assert compute_code_identity(bare) is None
