"""Promises of `hpckit rm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from hpckit.errors import ForeignError, NotFoundError, RunError, UsageError
from hpckit.model import events
from hpckit.model.launch import Checkpoint, ClusterKind
from hpckit.record.lock import hold_lock
from hpckit.record.process import read_process_start_id, this_host


def complete(writer: Any, launch: Any) -> Any:
    """Let all runs of a launch complete."""
    for index in range(len(launch.runs)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.log(0, "x" * 1000)
        attempt.complete()
    return launch


def rm(desk: Any, *words: str) -> dict[str, Any]:
    """Return what `rm --json` says of its only launch."""
    (one,) = json.loads(desk.say("rm", "--json", *words).out)["launches"]
    found: dict[str, Any] = one
    return found


def checkpoints(base: Path, launch: Any, *, size: int = 100) -> Path:
    """Put a checkpoint of run 0 where `checkpoint.dir` says."""
    own = base / str(launch.id)
    for folder in (base, own, own / "00000"):
        folder.mkdir(mode=0o700, exist_ok=True)
    (own / "00000" / "data").write_bytes(b"x" * size)
    return own


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def completed(desk: Any, writer: Any) -> Any:
    """Return a launch of two runs with a snapshot, both completed."""
    return complete(writer, desk.freeze(sweep=[("a=1",), ("a=2",)], files=("train.py",)))


def test_rm_removes_the_whole_launch_and_nothing_else(desk: Any, completed: Any, writer: Any) -> None:
    """The folder is gone with its read-only code; another launch keeps all it has."""
    other = complete(writer, desk.freeze("other", minute=1, files=("train.py",)))
    before = sorted(other.folder.rglob("*"))
    said = desk.say("rm", completed.id, "--yes")
    assert (said.code, names(desk.folder)) == (0, [other.id])
    assert "removed 1 launch, " in said.out
    assert sorted(other.folder.rglob("*")) == before


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--dry-run", "--yes"), ("--json",)])
def test_rm_shows_and_removes_nothing_unless_agreed(
    desk: Any, completed: Any, words: tuple[str, ...]
) -> None:
    """Elsewhere than on a terminal only --yes removes, and never with --dry-run."""
    before = sorted(completed.folder.rglob("*"))
    said = desk.say("rm", completed.id, *words)
    assert said.code == 0
    assert str(completed.folder) in said.out
    assert sorted(completed.folder.rglob("*")) == before


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_rm_asks_on_a_terminal(
    desk: Any,
    completed: Any,
    answer: str,
    gone: bool,  # noqa: FBT001  # a case
) -> None:
    """Only a yes removes."""
    said = desk.say("rm", completed.id, terminal=True, answer=lambda: answer)
    assert "remove 1 launch, " in said.out
    assert completed.folder.exists() is not gone


def test_rm_json_has_the_documented_fields(desk: Any, completed: Any) -> None:
    """Programs find the fields that docs/reference/cli/rm.md names."""
    document = json.loads(desk.say("rm", completed.id, "--json", "--yes").out)
    assert list(document) == ["launches", "total_bytes", "removed_bytes"]
    (one,) = document["launches"]
    assert list(one) == ["launch", "dir", "paths", "bytes", "left", "refused", "removed"]
    assert one["removed"]
    assert document["removed_bytes"] == document["total_bytes"] == one["bytes"] > 2000


def test_rm_wants_a_name_and_takes_no_run(desk: Any, completed: Any) -> None:
    """It never means the latest launch by itself, nor a part of one."""
    with pytest.raises(UsageError, match="LAUNCH is missing"):
        desk.say("rm", "--yes")
    with pytest.raises(UsageError, match="rm deletes whole launches") as caught:
        desk.say("rm", f"{completed.id}.0", "--yes")
    assert f"hpckit rm {completed.id}" in caught.value.hint
    assert completed.folder.exists()


def test_rm_takes_a_folder_only_as_a_whole(desk: Any, completed: Any) -> None:
    """A folder inside a launch names the launch for other verbs; here that would be too much."""
    for part in (completed.paths.logs, completed.paths.code, completed.paths.run(0).folder):
        with pytest.raises(UsageError, match="rm deletes whole launches"):
            desk.say("rm", str(part), "--yes")
    assert completed.folder.exists()
    assert rm(desk, str(completed.folder), "--yes")["removed"]


def test_rm_of_a_word_that_means_nothing_removes_nothing(desk: Any, completed: Any) -> None:
    """A typing mistake among several names is found before anything goes."""
    with pytest.raises(NotFoundError):
        desk.say("rm", completed.id, "absent", "--yes")
    assert completed.folder.exists()


def test_rm_refuses_a_launch_that_may_be_alive_and_removes_the_others(
    desk: Any, completed: Any, writer: Any
) -> None:
    """One that waits, one that runs elsewhere and one that runs here: each keeps everything."""
    waits = desk.freeze("waits", minute=1)
    elsewhere = desk.freeze("elsewhere", minute=2)
    writer(launch=elsewhere).start()
    here = desk.freeze("here", minute=3, sweep=[("a=1",), ("a=2",)])
    complete(writer, here)
    pid = os.getpid()
    process = (this_host(), pid, read_process_start_id(pid) or "")
    writer(launch=here, index=1, attempt=2).start(process=process)
    said = desk.say("rm", "--yes", completed.id, "waits", "elsewhere", "here")
    assert said.code == 2
    assert names(desk.folder) == sorted(one.id for one in (waits, elsewhere, here))
    for one in (waits, elsewhere, here):
        assert f"{one.id} was not removed" in said.err


def test_rm_refuses_while_a_supervisor_has_not_ended(desk: Any, writer: Any) -> None:
    """Its final event is written, but it may write more: that process is named."""
    launch, pid = desk.freeze(), os.getpid()
    attempt = writer(launch=launch)
    attempt.start(process=(this_host(), pid, read_process_start_id(pid) or ""))
    attempt.complete()
    said = rm(desk, launch.id, "--yes")
    assert f"its supervisor (process {pid}) has not ended" in said["refused"]
    assert launch.folder.exists()


def test_rm_refuses_while_the_local_executor_has_not_ended(desk: Any, completed: Any) -> None:
    """The process that works through the launch writes to its folder, too."""
    pid = os.getpid()
    desk.tell(
        completed,
        events.LocalStarted(
            at=completed.created_at, host=this_host(), pid=pid, started=read_process_start_id(pid) or ""
        ),
    )
    assert "local executor" in rm(desk, completed.id, "--yes")["refused"]


def test_rm_refuses_an_unconfirmed_submission(desk: Any, completed: Any) -> None:
    """Slurm may have what nobody has heard of."""
    intent = events.SubmitIntended(at=completed.created_at, job_index=0, job_name="demo-job")
    desk.tell(completed, intent)
    assert "hpckit doctor" in rm(desk, completed.id, "--yes")["refused"]


def test_rm_refuses_while_somebody_resumes(desk: Any, completed: Any) -> None:
    """Nothing goes while another process adds jobs to the launch."""
    with hold_lock(completed.paths.resume_lock, at=completed.created_at, what="is resuming it"):
        assert "is resuming" in rm(desk, completed.id, "--yes")["refused"]
    assert completed.folder.exists()


def test_rm_looks_again_before_it_removes(desk: Any, completed: Any, writer: Any) -> None:
    """A run that has begun again while a person thought about it keeps the launch."""

    def begin_again() -> str:
        writer(launch=completed, attempt=2).start()
        return "y"

    said = desk.say("rm", completed.id, terminal=True, answer=begin_again)
    assert (said.code, completed.folder.exists()) == (2, True)
    assert "is running" in said.err


def of_slurm(desk: Any, writer: Any, fake_slurm: Any, job: str) -> Any:
    """Return a completed launch that Slurm was given as this job."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job=job))
    attempt = writer(launch=launch)
    attempt.start(job=job)
    attempt.complete()
    return launch


def submit(fake_slurm: Any, tmp_path: Path, text: str) -> str:
    """Submit a script to the fake Slurm; return the job."""
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    words = ("--parsable", "--output=/dev/null", str(script))
    job: str = fake_slurm.slurm("sbatch", *words).strip()
    return job


def test_rm_refuses_what_slurm_still_has(desk: Any, writer: Any, fake_slurm: Any, tmp_path: Path) -> None:
    """Also if all runs completed: the job, or one that only serves the launch, may still write."""
    launch = of_slurm(desk, writer, fake_slurm, submit(fake_slurm, tmp_path, "sleep 60"))
    assert rm(desk, launch.id, "--yes")["refused"]
    assert launch.folder.exists()


def test_rm_refuses_while_a_service_job_waits(
    desk: Any, writer: Any, fake_slurm: Any, tmp_path: Path
) -> None:
    """An auto-resume job in the queue would find no launch; it is named, with the way out."""
    ended = submit(fake_slurm, tmp_path, "true")
    until(lambda: ended not in fake_slurm.slurm("squeue", "--noheader", "--format=%A").split())
    launch = of_slurm(desk, writer, fake_slurm, ended)
    service = submit(fake_slurm, tmp_path, "sleep 60")
    like = launch.jobs[0]
    added = type(like)(index=1, name=f"{launch.id}-auto", runs=(), resources=like.resources, requeue=False)
    desk.tell(launch, events.JobAdded(at=launch.created_at, job=added, after=()))
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=1, job=service))
    refused = rm(desk, launch.id, "--yes")["refused"]
    assert f"Slurm still has 1 job of it ({service})" in refused
    fake_slurm.slurm("scancel", service)
    fake_slurm.slurm("scontrol", "shutdown")
    assert rm(desk, launch.id, "--yes")["removed"]


def test_rm_refuses_while_slurm_is_away(desk: Any, writer: Any, fake_slurm: Any) -> None:
    """Who does not answer may still have a job of the launch."""
    launch = of_slurm(desk, writer, fake_slurm, "7")
    fake_slurm.fail("controller-away")
    fake_slurm.fail("database-away")
    assert "Slurm has not said" in rm(desk, launch.id, "--yes")["refused"]
    assert launch.folder.exists()


def test_rm_takes_checkpoints_that_are_kept_elsewhere(desk: Any, writer: Any, tmp_path: Path) -> None:
    """Those of the launch, and not those of another one below the same checkpoint.dir."""
    base = tmp_path / "scratch"
    launch = complete(writer, desk.freeze(checkpoint=Checkpoint(dir=str(base))))
    other = desk.freeze("other", minute=1, checkpoint=Checkpoint(dir=str(base)))
    own, kept = checkpoints(base, launch), checkpoints(base, other)
    said = rm(desk, launch.id, "--yes")
    assert [part["path"] for part in said["paths"]] == [str(launch.folder), str(own)]
    assert said["paths"][1]["bytes"] == 100
    assert (own.exists(), kept.exists()) == (False, True)


def test_rm_follows_no_link(desk: Any, writer: Any, tmp_path: Path) -> None:
    """What links lead to stays: in the launch, for the checkpoints, or for the launch itself."""
    base, outside = tmp_path / "scratch", tmp_path / "outside"
    for folder in (base, outside):
        folder.mkdir()
    (outside / "mine").write_text("mine")
    launch = complete(writer, desk.freeze(checkpoint=Checkpoint(dir=str(base))))
    (base / launch.id).symlink_to(outside)
    (launch.folder / "link").symlink_to(outside)
    said = rm(desk, launch.id, "--yes")
    assert (said["removed"], "link" in said["left"][0]) == (True, True)
    assert (outside / "mine").read_text() == "mine"
    away = complete(writer, desk.freeze("away", minute=1))
    away.folder.rename(outside / away.id)
    away.folder.symlink_to(outside / away.id)
    for name in (away.id, away.id[:6]):
        with pytest.raises(UsageError, match="is a link"):
            desk.say("rm", name, "--yes")
    assert (outside / away.id).exists()


def test_rm_leaves_checkpoints_that_others_may_write_to(desk: Any, writer: Any, tmp_path: Path) -> None:
    """A folder that is not the user's alone is named and stays; the launch goes."""
    base = tmp_path / "scratch"
    launch = complete(writer, desk.freeze(checkpoint=Checkpoint(dir=str(base))))
    own = checkpoints(base, launch)
    own.chmod(0o777)
    said = rm(desk, launch.id, "--yes")
    assert (own.exists(), launch.folder.exists()) == (True, False)
    assert "can be written by others" in said["left"][0]


def test_rm_refuses_a_launch_whose_configurations_are_damaged(desk: Any, completed: Any, writer: Any) -> None:
    """What it keeps elsewhere is not known then; others that were named go."""
    other = complete(writer, desk.freeze("other", minute=1))
    completed.paths.configs_file_of_run(0).write_text("{")
    said = desk.say("rm", completed.id, other.id, "--yes")
    assert (said.code, names(desk.folder)) == (2, [completed.id])
    assert "cannot be read" in said.err


@pytest.mark.parametrize(
    ("given", "reason"), [("scratch", "is relative"), ("/absent/scratch", "not a folder of this")]
)
def test_rm_names_checkpoints_that_it_cannot_reach(desk: Any, writer: Any, given: str, reason: str) -> None:
    """They stay: they are on another host, or wherever the ranks were."""
    launch = complete(writer, desk.freeze(checkpoint=Checkpoint(dir=given)))
    said = rm(desk, launch.id, "--yes")
    assert (said["removed"], reason in said["left"][0]) == (True, True)


def test_rm_refuses_a_launch_that_is_not_the_users_own(desk: Any, completed: Any) -> None:
    """Others may have written what it names."""
    completed.folder.chmod(0o777)
    with pytest.raises(ForeignError):
        desk.say("rm", completed.folder.name, "--yes")
    assert completed.paths.launch.exists()


KILLED = """\
import os, shutil, sys
from pathlib import Path
from hpckit.cli.main import main
rmtree, kills, seen = shutil.rmtree, int(sys.argv[1]), []
def crash(path, *words, **more):
    seen.append(path)
    os.kill(os.getpid(), 9) if len(seen) > kills else rmtree(path, *words, **more)
unlink_one = Path.unlink
def unlink(path, missing_ok=False):
    os.kill(os.getpid(), 9) if path.name == "launch.json" else unlink_one(path, missing_ok)
shutil.rmtree = crash
if kills == 2:
    Path.unlink = unlink
main(["rm", *sys.argv[2:]])
"""
"""Killed at its first tree, at its second one, or before `launch.json` goes."""


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_rm_that_is_cut_off_leaves_no_launch_and_is_finished_by_the_next(
    desk: Any, writer: Any, tmp_path: Path, kills: int
) -> None:
    """Killed at any removal, the launch is gone for all readers, and the same words end it."""
    base = tmp_path / "scratch"
    launch = complete(writer, desk.freeze(checkpoint=Checkpoint(dir=str(base)), files=("a",)))
    own = checkpoints(base, launch)
    words = [launch.id, "--yes", "--output-dir", str(desk.folder)]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(kills), *words], check=False)
    assert killed.returncode == -9
    with pytest.raises(NotFoundError):
        desk.say("status", launch.id)
    assert json.loads(desk.say("ls", "--json").out)["launches"] == []
    assert names(desk.folder)
    said = desk.say("rm", launch.id, "--yes")
    assert "an earlier removal was cut off" in said.out
    assert (own.exists(), names(desk.folder), names(base)) == (False, [], [])


def test_rm_finishes_before_it_takes_another_launch_of_the_name(
    desk: Any, completed: Any, writer: Any
) -> None:
    """Repeated words never reach further than what they meant at first."""
    later = complete(writer, desk.freeze(minute=1))
    later.folder.rename(desk.folder / f".removed.{later.id}.00112233")
    desk.say("rm", "demo", "--yes")
    assert names(desk.folder) == [completed.id]


def test_rm_says_what_could_not_be_removed(
    desk: Any, completed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that stays is an error (1) with its path, and the way to finish."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(RunError, match="Permission denied") as caught:
        desk.say("rm", completed.id, "--yes")
    assert "run the same `hpckit rm` again" in caught.value.hint


def test_launch_after_rm_computes_again(shell: Any) -> None:
    """What was removed stands for no later run: the same words launch it again."""
    words = ("launch", "cluster=local", "experiment=command", "command=[sh,-c,'exit 0']", "--wait")
    assert shell(*words, "code.snapshot=false", "--json", "--any-code").code == 0
    (first,) = shell.outputs
    again = json.loads(shell(*words, "code.snapshot=true", "--json", "--any-code").out)
    assert [one["state"] for one in again["skipped"]] == ["completed"]
    shell.environ["HPCKIT_OUTPUTS"] = str(first.parent)
    while (said := shell("rm", first.name, "--yes")).code == 2:
        assert "has not ended yet" in said.err
    assert (said.code, shell.outputs) == (0, [])
    third = json.loads(shell(*words, "--json", "--any-code").out)
    assert (third["skipped"], len(third["runs"])) == ([], 1)


@pytest.mark.parametrize("word", ["demo", "the id"])
def test_rm_reaches_a_launch_that_is_newer_than_a_leftover(
    desk: Any, completed: Any, writer: Any, word: str
) -> None:
    """A name means its latest launch, also where the removal of an older one was cut off."""
    later = complete(writer, desk.freeze(minute=1))
    leftover = desk.folder / f".removed.{completed.id}.00112233"
    completed.folder.rename(leftover)
    desk.say("rm", later.id if word == "the id" else word, "--yes")
    assert names(desk.folder) == [leftover.name]


def test_rm_takes_no_beginning_that_fits_a_leftover_and_a_launch(
    desk: Any, completed: Any, writer: Any
) -> None:
    """Such a beginning is ambiguous, as one of two launches is; more of the id is not."""
    later = complete(writer, desk.freeze(minute=1))
    leftover = desk.folder / f".removed.{completed.id}.00112233"
    completed.folder.rename(leftover)
    with pytest.raises(NotFoundError, match="beginning of 2 launches"):
        desk.say("rm", "demo-2026", "--yes")
    assert names(desk.folder) == sorted([leftover.name, later.id])
    desk.say("rm", completed.id[:-1], "--yes")
    assert names(desk.folder) == [later.id]
