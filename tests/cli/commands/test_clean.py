"""Promises of `hpckit clean`."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.main import main
from hpckit.errors import RunError, UsageError
from hpckit.model import events
from hpckit.model.launch import Checkpoint, ClusterKind
from hpckit.model.parallel.layout import Layout
from hpckit.record.lock import hold_lock
from hpckit.record.process import read_process_start_id, this_host
from hpckit.runtime.checkpoint import journal, manifest
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.manifest import FileSum, Manifest


def clean(desk: Any, *words: str) -> dict[str, Any]:
    """Return what `clean --json` says."""
    document: dict[str, Any] = json.loads(desk.say("clean", "--json", *words).out)
    return document


def attempts(writer: Any, launch: Any, *, count: int = 2, index: int = 0) -> Any:
    """Make so many attempts, all interrupted but the last, which is returned and goes on."""
    for number in range(1, count + 1):
        attempt = writer(launch=launch, index=index, attempt=number)
        attempt.start()
        attempt.log(0, "x" * 1000)
        attempt.agents_log("agents\n")
        attempt.metrics(number, loss=1.0)
        if number < count:
            attempt.interrupt()
    return attempt


def save(folder: Path, step: int, *, torn: bool = False, attempt: int = 1) -> Path:
    """Put a checkpoint of 100 bytes on a shelf."""
    path = CheckpointFolder(folder).make_save_folder(step, attempt)
    (path / "data").write_bytes(b"x" * 100)
    if not torn:
        saved = Manifest(
            step=step,
            samples=step,
            batches=Fraction(step),
            epoch=1,
            serial=step,
            layout=Layout(replicate=1),
            objects=(),
            files={"data": FileSum(size=100, crc32=0)},
            created_at="",
        )
        manifest.commit_checkpoint(path, saved, lambda: True)
    return path


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def completed(desk: Any, writer: Any) -> Any:
    """Return a launch with a snapshot, whose one run completed in its second attempt."""
    launch = desk.freeze(files=("train.py", "model.py"))
    attempts(writer, launch).complete()
    return launch


def test_clean_shows_what_would_go_and_removes_nothing(desk: Any, completed: Any) -> None:
    """Where nobody can be asked, nothing goes without --yes: what and how much is said."""
    before = sorted(completed.folder.rglob("*"))
    said = desk.say("clean")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert ["launch", "what", "items", "size"] in lines
    assert [line[1] for line in lines if line[0] == completed.id] == ["attempts", "code"]
    assert lines[3][:3] == ["all", "3", "1.0"]
    assert "--yes" in said.err
    assert sorted(completed.folder.rglob("*")) == before


def test_clean_keeps_the_record_and_the_last_attempt(desk: Any, completed: Any) -> None:
    """Of earlier attempts only what was printed goes: events, progress and metrics stay."""
    account = json.loads(desk.say("status", "--json").out)["runs"][0]["goodput"]
    desk.say("clean", "--yes")
    run = completed.paths.run(0)
    assert names(run.attempt(1).folder) == ["events.jsonl", "metrics.jsonl", "progress.json"]
    assert run.attempt(2).round(0).rank_log(0).exists()
    assert run.attempt(2).agents_log.exists()
    assert json.loads(desk.say("status", "--json").out)["runs"][0]["goodput"] == account
    assert clean(desk)["launches"][0]["items"] == []


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_clean_asks_whoever_watches(
    desk: Any,
    completed: Any,
    answer: str,
    gone: bool,  # noqa: FBT001  # a case
) -> None:
    """On a terminal it asks, and only a yes removes."""
    said = desk.say("clean", terminal=True, answer=lambda: answer)
    assert "? [y/N]" in said.out
    assert completed.paths.code.exists() is not gone


def test_clean_by_category_leaves_the_others(desk: Any, completed: Any) -> None:
    """--attempts removes what attempts left, and no code."""
    document = clean(desk, "--attempts", "--yes")
    assert {item["category"] for item in document["launches"][0]["items"]} == {"attempts"}
    assert document["bytes"]["attempts"] == document["total_bytes"] == 1007
    assert document["removed_bytes"] == 1007
    assert completed.paths.code.exists()


def test_clean_json_has_the_documented_fields(desk: Any, completed: Any) -> None:
    """Programs find the fields that the page names; without --yes nothing is removed."""
    document = clean(desk)
    assert list(document) == ["launches", "bytes", "total_bytes", "removed_bytes"]
    (one,) = document["launches"]
    assert list(one) == ["launch", "dir", "items", "left"]
    item = one["items"][0]
    assert list(item) == ["category", "run", "path", "why", "bytes", "removed"]
    assert (item["run"], item["removed"]) == (f"{completed.id}.0", False)
    assert document["removed_bytes"] == 0


def test_clean_spares_runs_that_may_be_alive(desk: Any, writer: Any) -> None:
    """A run that waits, one that runs elsewhere, and one that runs here keep everything."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",), ("a=3",)])
    attempts(writer, launch)
    attempts(writer, launch, index=1, count=1).interrupt()
    pid = os.getpid()
    here = (this_host(), pid, read_process_start_id(pid) or "")
    writer(launch=launch, index=1, attempt=2).start(process=here)
    save(launch.paths.run(0).checkpoints, 1, torn=True)
    document = clean(desk, "--yes", "--checkpoints", "--attempts")
    assert document["launches"][0]["items"] == []
    left = {one["name"] for one in document["launches"][0]["left"]}
    assert left == {f"{launch.id}.{index}" for index in range(3)}


def test_clean_spares_what_slurm_says_nothing_of(desk: Any, writer: Any, fake_slurm: Any) -> None:
    """With Slurm away, an attempt that ended may have been followed by another one."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job="7"))
    attempts(writer, launch).fail()
    for program in ("squeue", "sacct"):
        fake_slurm.remove(program)
    (left,) = clean(desk, "--yes", "--attempts")["launches"][0]["left"]
    assert "Slurm has not said" in left["reason"]


def test_clean_removes_checkpoints_that_no_load_would_take(desk: Any, completed: Any) -> None:
    """By default what was torn, damaged or rejected goes, and nothing that is healthy."""
    folder = completed.paths.run(0).checkpoints
    kept = [save(folder, step) for step in (1, 2, 3)]
    torn, damaged = save(folder, 4, torn=True), save(folder, 0)
    (damaged / "data").write_bytes(b"")
    desk.say("clean", "--checkpoints", "--yes")
    assert names(folder) == sorted(path.name for path in kept)
    assert not torn.exists()


def test_clean_spares_what_a_new_attempt_is_saving(desk: Any, completed: Any) -> None:
    """A save of an attempt that began since the run was looked at is not finished: it stays."""
    folder = completed.paths.run(0).checkpoints
    save(folder, 1, torn=True, attempt=2)
    newer = save(folder, 2, torn=True, attempt=3)
    desk.say("clean", "--checkpoints=all", "--yes")
    assert names(folder) == [newer.name]


@pytest.mark.parametrize(("extent", "steps"), [("old", [3, 4]), ("all", [])])
def test_clean_of_a_completed_run_keeps_as_many_checkpoints_as_asked(
    desk: Any, completed: Any, extent: str, steps: list[int]
) -> None:
    """`old` keeps the two newest, `all` none."""
    folder = completed.paths.run(0).checkpoints
    saved = {step: save(folder, step) for step in (1, 2, 3, 4)}
    desk.say("clean", f"--checkpoints={extent}", "--yes")
    assert [step for step, path in saved.items() if path.exists()] == steps


def test_clean_of_a_run_that_did_not_complete_keeps_two(desk: Any, writer: Any) -> None:
    """`all` is for completed runs: one that failed can be resumed from its two newest."""
    launch = desk.freeze()
    attempts(writer, launch).fail()
    folder = launch.paths.run(0).checkpoints
    saved = {step: save(folder, step) for step in (1, 2, 3, 4)}
    journal.append_checkpoint_fate(
        CheckpointFolder(folder).journal_path, journal.CheckpointFate.proved, saved[1].name, epoch=1
    )
    journal.append_checkpoint_fate(
        CheckpointFolder(folder).journal_path, journal.CheckpointFate.rejected, saved[4].name, epoch=1
    )
    desk.say("clean", "--checkpoints=all", "--yes")
    # 4 is of the two newest, 3 and 2 are the newest healthy ones, 1 was proved last.
    assert [step for step, path in saved.items() if path.exists()] == [1, 2, 3, 4]


def test_clean_finds_checkpoints_that_are_kept_elsewhere(desk: Any, writer: Any, tmp_path: Path) -> None:
    """checkpoint.dir is cleaned as the run's own folder is."""
    launch = desk.freeze(checkpoint=Checkpoint(dir=str(tmp_path / "scratch")))
    attempts(writer, launch).complete()
    torn = save(tmp_path / "scratch" / launch.id / "00000", 1, torn=True)
    other = save(tmp_path / "scratch" / "other" / "00000", 1, torn=True)
    desk.say("clean", "--checkpoints", "--yes")
    assert (torn.exists(), other.exists()) == (False, True)


def test_clean_says_that_it_cannot_know_a_relative_folder(desk: Any, writer: Any) -> None:
    """A checkpoint.dir that was relative to the run's own process is named, not passed over."""
    launch = desk.freeze(checkpoint=Checkpoint(dir="scratch"))
    attempts(writer, launch).complete()
    (left,) = clean(desk, "--checkpoints")["launches"][0]["left"]
    assert "checkpoint.dir=scratch is relative" in left["reason"]


def test_clean_follows_no_links(desk: Any, writer: Any, tmp_path: Path) -> None:
    """What a link points to stays, wherever the link is: only the names of links may go."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    for index in (0, 1):
        attempts(writer, launch, index=index).complete()
    elsewhere = tmp_path / "elsewhere"
    step = save(elsewhere, 1, torn=True)
    first, second = launch.paths.run(0), launch.paths.run(1)
    first.checkpoints.symlink_to(elsewhere)
    second.checkpoints.mkdir()
    (second.checkpoints / step.name).symlink_to(step)
    (first.attempt(1).rounds / "link").symlink_to(elsewhere)
    said = desk.say("clean", "--checkpoints=all", "--attempts", "--yes").out
    assert f"left alone: {launch.id}.0: its checkpoints are behind a link" in said
    assert (step / "data").exists()
    assert names(second.checkpoints) == [step.name]
    assert not first.attempt(1).rounds.exists()


def test_clean_removes_code_when_all_runs_have_completed(desk: Any, writer: Any) -> None:
    """While one run may still need the snapshot, it stays, and why is said."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)], files=("train.py",))
    attempts(writer, launch, count=1).complete()
    second = attempts(writer, launch, count=1, index=1)
    second.fail()
    assert "1 run still to complete" in desk.say("clean", "--code", "--yes").out
    assert launch.paths.code.exists()
    attempts(writer, launch, count=2, index=1).complete()
    desk.say("clean", "--code", "--yes", f"{launch.id}.0")
    assert launch.paths.code.exists()
    desk.say("clean", "--code", "--yes")
    assert not launch.paths.code.exists()
    assert launch.paths.code_record.exists()


@pytest.mark.parametrize("name", ["result.pt", "train.py"])
def test_clean_keeps_code_that_runs_wrote_into(desk: Any, completed: Any, name: str) -> None:
    """A run works in its snapshot: what it left there, new or changed, is not ours to remove."""
    (completed.paths.code / name).write_text("mine")
    said = desk.say("clean", "--code", "--yes")
    assert f"runs wrote into it: {name}" in said.out
    assert (completed.paths.code / name).read_text() == "mine"


def test_clean_does_not_count_what_python_compiled(desk: Any, completed: Any) -> None:
    """A __pycache__ goes with the code."""
    (completed.paths.code / "__pycache__").mkdir()
    (completed.paths.code / "__pycache__" / "train.cpython-311.pyc").touch()
    desk.say("clean", "--code", "--yes")
    assert not completed.paths.code.exists()


def test_resume_without_its_snapshot_is_refused(desk: Any, completed: Any, writer: Any) -> None:
    """Also with --changed-code: there is nothing to run, and the way out is named."""
    desk.say("clean", "--code", "--yes")
    attempts(writer, completed, count=3).fail()
    with pytest.raises(UsageError, match=r"the code snapshot .* is gone") as caught:
        desk.say("resume", "--changed-code", completed.id)
    assert str(desk.folder.parent / "project") in caught.value.hint


def test_clean_ends_what_a_crash_cut_off(desk: Any, completed: Any) -> None:
    """What was renamed and not yet removed is found by the next one, and nobody else sees it."""
    folder = completed.paths.run(0).checkpoints
    step = save(folder, 1)
    places = [(step, folder), (completed.paths.code, completed.folder)]
    places.append((completed.paths.run(0).attempt(1).rounds, completed.paths.run(0).attempt(1).folder))
    for path, parent in places:
        path.rename(parent / f".removed.{path.name}.0000")
    whys = [item["why"] for item in clean(desk, "--yes")["launches"][0]["items"]]
    assert whys.count("an earlier clean was interrupted") == 3
    assert list(completed.folder.rglob(".removed*")) == []


def test_clean_looks_again_before_it_removes(desk: Any, completed: Any, writer: Any) -> None:
    """A run that has begun anew while somebody thought about it keeps what it has."""
    step = save(completed.paths.run(0).checkpoints, 1, torn=True)

    def begin_anew() -> str:
        writer(launch=completed, attempt=3).start()
        return "y"

    said = desk.say("clean", terminal=True, answer=begin_anew)
    assert "removed 0 items" in said.out
    assert step.exists()
    assert completed.paths.run(0).attempt(1).rounds.exists()


def test_clean_says_what_could_not_be_removed(
    desk: Any, completed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that stays is an error with its path; the others are removed all the same."""
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "rounds":
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunError, match="rounds: Permission denied"):
        desk.say("clean", "--yes")
    assert not completed.paths.code.exists()


def test_clean_prints_no_document_before_an_error(
    desk: Any, completed: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Standard output of `--json` is a whole answer with exit code 0, or empty."""

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", f"{path} to {target}")

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.chdir(desk.folder)
    assert main(["clean", "--yes", "--json", "--output-dir", str(desk.folder)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "could not be removed" in said.err
    assert completed.paths.code.exists()


def test_clean_keeps_off_a_launch_that_somebody_is_resuming(desk: Any, completed: Any) -> None:
    """One at a time: nothing goes while a resume is under way, and who is at it is said."""
    at = completed.created_at
    with (
        hold_lock(completed.paths.resume_lock, at=at, what="is resuming it"),
        pytest.raises(RunError, match="is resuming"),
    ):
        desk.say("clean", "--yes")
    assert completed.paths.code.exists()


def test_clean_of_all_launches_takes_those_that_are_meant(desk: Any, writer: Any) -> None:
    """--all with filters cleans the runs meant, whichever launch they are of."""
    launches = [desk.freeze(name, sweep=[(f"lr={n}",)], minute=n) for n, name in enumerate("abc")]
    for launch in launches:
        attempts(writer, launch).complete()
    document = clean(desk, "--all", "--override", "lr=[12]", "--yes")
    found = {one["launch"] for one in document["launches"] if one["items"]}
    assert found == {launches[1].id, launches[2].id}
    assert launches[0].paths.run(0).attempt(1).rounds.exists()


def test_clean_takes_a_launch_behind_checkpoints(desk: Any, completed: Any) -> None:
    """`--checkpoints LAUNCH` is the launch, not an extent; a word that is neither is refused."""
    assert clean(desk, "--checkpoints", completed.id)["launches"][0]["launch"] == completed.id
    with pytest.raises(UsageError, match="unproved, old, all"):
        clean(desk, "--checkpoints=some", completed.id)


def test_clean_refuses_an_extent_that_is_none(desk: Any) -> None:
    """What stands behind `=` is the value, and never a launch."""
    launch = desk.freeze()
    with pytest.raises(UsageError, match="--checkpoints is 'foo'; it must be unproved, old, all"):
        desk.say("clean", "--checkpoints=foo", "--dry-run")
    for words in (("--checkpoints", launch.id), ("--checkpoints", "old", launch.id)):
        assert launch.id in desk.say("clean", *words, "--dry-run").out
