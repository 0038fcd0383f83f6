"""Promises of docs/explanations/security.md about launch folders of other users.

Folders of strangers really belong to another user, so that these tests need root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.shared_place import BY_ROOT, LAUNCH, NEWEST, STRANGER, Place, files_of, give, mine, place, world

__all__ = ["mine", "place", "world"]

pytestmark = BY_ROOT


@pytest.fixture
def trap(place: Place, mine: Path) -> Path:
    """Return a stranger's launch, the newest of all, that names programs of the stranger's."""
    programs = place.folder / "evil"
    if not programs.exists():
        programs.mkdir()
        for name in ("squeue", "sacct", "scancel", "sbatch", "scontrol", "srun", "python"):
            (programs / name).write_text(f"#!/bin/sh\nid -u > {place.trace}\n")
        give(programs)
        for program in programs.iterdir():
            program.chmod(0o755)
    folder = place.plant(
        mine,
        kind="slurm",
        bin_dir=str(programs),
        python=str(programs / "python"),
        setup=[f"touch {place.trace}"],
    )
    shutil.rmtree(folder / "runs")
    told = [
        {"event": "submit_intended", "job_index": 0, "job_name": NEWEST},
        {"event": "submitted", "job_index": 0, "job": "123"},
    ]
    at = "2026-01-01T00:00:00.000+00:00"
    lines = [json.dumps({"v": 1, "at": at, **one}) + "\n" for one in told]
    (told_by,) = (folder / "events").iterdir()
    told_by.write_text("".join(lines))
    return folder


@pytest.mark.parametrize("verb", ["status", "logs", "results", "show"])
def test_security_shows_a_strangers_launch_and_runs_nothing_of_it(
    place: Place, trap: Path, verb: str
) -> None:
    """Who looks at another user's launch runs no program that it names, and changes nothing."""
    before = files_of(trap)
    seen = place.hpckit(verb, str(trap))
    assert seen.returncode == 0, seen.stderr
    assert not place.trace.exists()
    assert files_of(trap) == before


def test_security_status_says_whose_a_launch_is(place: Place, trap: Path) -> None:
    """`status` and `ls` name the owner of a launch that is not the caller's, in text and JSON."""
    assert "belongs to nobody (uid 65534)" in place.hpckit("status", str(trap)).stdout
    document = json.loads(place.hpckit("status", str(trap), "--json").stdout)
    assert document["foreign"]["uid"] == STRANGER
    listed = json.loads(place.hpckit("ls", "--json").stdout)["launches"]
    assert [one["foreign"] and one["foreign"]["uid"] for one in listed] == [STRANGER, None]
    assert "nobody (uid 65534)" in place.hpckit("ls").stdout


def test_security_show_and_diff_say_whose_a_launch_is(place: Place, trap: Path, mine: Path) -> None:
    """They look at another user's launch, and mark it as such, in text and JSON."""
    assert "belongs to nobody (uid 65534)" in place.hpckit("show", str(trap)).stdout
    shown = json.loads(place.hpckit("show", str(trap), "--json").stdout)
    assert shown["foreign"]["uid"] == STRANGER
    assert json.loads(place.hpckit("show", "--json").stdout)["foreign"] is None
    words = ("diff", str(mine), str(trap))
    assert "new is not yours: " in place.hpckit(*words).stdout
    foreign = json.loads(place.hpckit(*words, "--json").stdout)["foreign"]
    assert (foreign["old"], foreign["new"]["uid"]) == (None, STRANGER)
    assert not place.trace.exists()


def test_security_latest_launch_is_the_callers_own(place: Place, trap: Path, mine: Path) -> None:
    """In a shared folder, verbs without a name mean the caller's latest launch."""
    document = json.loads(place.hpckit("status", "--json").stdout)
    assert (document["launch"], document["foreign"]) == (mine.name, None)
    assert not place.trace.exists()
    assert trap.exists()


def test_security_name_of_a_strangers_launch_does_not_hide_ones_own(place: Place, mine: Path) -> None:
    """A stranger's launch whose id begins alike makes no beginning ambiguous."""
    place.plant(mine, name=f"{mine.name}-too")
    beginning = mine.name[:-2]
    document = json.loads(place.hpckit("status", beginning, "--json").stdout)
    assert document["launch"] == mine.name


ACTING = [
    ("resume",),
    ("cancel",),
    ("clean", "--yes"),
    ("watch",),
    ("rerun",),
    ("rerun", "--exact"),
    ("chaos", "kill rank=0"),
    ("doctor", "--adopt"),
]


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_security_refuses_to_act_on_a_strangers_launch(
    place: Place, trap: Path, words: tuple[str, ...]
) -> None:
    """Verbs that act say in one error whose launch it is, run nothing of it, and change nothing."""
    before = files_of(trap)
    done = place.hpckit(words[0], str(trap), *words[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "not yours to act on" in done.stderr
    assert "belongs to nobody (uid 65534)" in done.stderr
    assert not place.trace.exists()
    assert files_of(trap) == before


@pytest.mark.parametrize(
    "words",
    [
        ("supervise", "{folder}", "--job", "0"),
        ("local", "{folder}"),
        ("auto-resume", "{folder}", "--job", "0"),
        ("supervisor-lost", "{folder}", "--job", "0", "--run", "0", "1"),
    ],
    ids=lambda words: words[0],
)
def test_security_starts_nothing_of_a_strangers_launch_on_a_node(
    place: Place, trap: Path, words: Sequence[str]
) -> None:
    """What batch scripts call refuses the folder of another user, too."""
    done = place.hpckit(*(word.format(folder=trap) for word in words))
    assert done.returncode == 2
    assert "not yours to act on" in done.stderr
    assert not place.trace.exists()


@pytest.mark.parametrize("verb", ["cancel", "clean", "doctor"])
def test_security_all_launches_are_all_of_the_callers(place: Place, trap: Path, verb: str) -> None:
    """`--all`, and `doctor` without a name, leave the launches of others out."""
    before = files_of(trap)
    words = () if verb == "doctor" else ("--all", *(("--yes",) if verb == "clean" else ()))
    done = place.hpckit(verb, *words)
    assert done.returncode == 0, done.stderr
    assert not place.trace.exists()
    assert files_of(trap) == before


def test_security_strangers_launch_is_never_completed_already(place: Place, mine: Path) -> None:
    """A copy of a completed launch that another user put there keeps nobody from launching."""
    hidden = mine.with_name(f".{mine.name}")
    place.plant(mine)
    mine.rename(hidden)
    try:
        done = place.hpckit(*LAUNCH, "--dry-run", "--json")
    finally:
        hidden.rename(mine)
    document = json.loads(done.stdout)
    assert (document["skipped"], document["adopted"]) == ([], [])
    assert [run["index"] for run in document["runs"]] == [0]
    assert "already" in place.hpckit(*LAUNCH, "--dry-run").stderr


def test_security_launch_runs_nothing_of_a_stranger(place: Place, trap: Path) -> None:
    """`launch` asks no scheduler that a stranger's launch of the same signature names."""
    done = place.hpckit(*LAUNCH, "--dry-run", "--rerun")
    assert done.returncode == 0, done.stderr
    assert place.hpckit(*LAUNCH, "--dry-run").returncode == 0
    assert not place.trace.exists()
    assert trap.exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_security_launch_that_others_may_write_to_is_a_strangers(place: Place, mine: Path, mode: int) -> None:
    """A launch of one's own that others may write to is refused, with the command that mends it."""
    mine.chmod(mode)
    try:
        done = place.hpckit("cancel", str(mine))
        assert done.returncode == 2
        assert f"mode {mode:04o}" in done.stderr
        assert f"chmod -R go-w {mine}" in done.stderr
        subprocess.run(["chmod", "-R", "go-w", str(mine)], check=True)
        assert place.hpckit("cancel", str(mine)).returncode == 0
    finally:
        mine.chmod(0o700)


def test_security_launch_record_of_another_user_is_a_strangers(place: Place, mine: Path) -> None:
    """The launch is not the caller's own where only its launch.json belongs to another user."""
    os.chown(mine / "launch.json", STRANGER, STRANGER)
    try:
        assert place.hpckit("cancel", str(mine)).returncode == 2
    finally:
        os.chown(mine / "launch.json", 0, 0)


def test_security_folder_that_everybody_may_change_holds_no_launch(place: Place, mine: Path) -> None:
    """Where everybody may replace a launch, nothing is launched or acted on."""
    place.outputs.chmod(0o777)
    try:
        acted = place.hpckit("cancel", str(mine))
        launched = place.hpckit("render", *LAUNCH[1:])
    finally:
        place.outputs.chmod(0o1777)
    for done in (acted, launched):
        assert done.returncode == 2
        assert f"chmod +t {place.outputs}" in done.stderr
    assert [path for path in place.outputs.iterdir() if path != mine] == []


def test_security_link_of_a_stranger_is_not_followed(place: Place, mine: Path, tmp_path: Path) -> None:
    """A link that another user put into a shared folder makes no launch of what it points to."""
    link = place.outputs / NEWEST
    link.symlink_to(mine)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    document = json.loads(place.hpckit("status", "--json").stdout)
    assert document["launch"] == mine.name
    listed = json.loads(place.hpckit("ls", "--json").stdout)["launches"]
    assert {one["dir"]: one["foreign"] is None for one in listed} == {str(link): False, str(mine): True}
    mine_too = tmp_path / "link"
    mine_too.symlink_to(mine)
    assert place.hpckit("cancel", str(mine_too)).returncode == 0


@pytest.mark.parametrize("name", ["launch.json", "events/n1.jsonl", "signatures.txt"])
def test_security_pipe_of_a_stranger_holds_nobody_up(place: Place, mine: Path, name: str) -> None:
    """A pipe where a file of a launch should be blocks none of the verbs that look around."""
    folder = place.plant(mine)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name, 0o644)
    os.chown(folder / name, STRANGER, STRANGER)
    for words in (("ls",), ("status",), (*LAUNCH, "--dry-run"), ("status", str(folder))):
        assert place.hpckit(*words).returncode in {0, 1, 2}


def test_security_index_of_a_stranger_is_not_believed(place: Place, desk_of_many: Path) -> None:
    """What a stranger's index says of runs is neither read nor written by anybody else."""
    index = desk_of_many / "index"
    index.mkdir()
    (index / "runs.json").write_text("no index")
    give(desk_of_many)
    before = files_of(desk_of_many)
    assert place.hpckit("status", str(desk_of_many)).returncode == 0
    assert files_of(desk_of_many) == before


@pytest.fixture
def desk_of_many(place: Place) -> Path:
    """Return a rendered launch of so many runs that it gets an index."""
    words = ("-m", *LAUNCH[1:-1], "+params.i=range(60)", "--json")
    done = place.hpckit("render", *words)
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["dir"])


def test_security_other_users_see_a_launch_they_may_read_as_evidence(place: Place, mine: Path) -> None:
    """Not even root's launch is another user's to act on; they may look where they may read."""
    copy = place.outputs / "root-20260101-000000-ab12"
    shutil.copytree(mine, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    seen = place.as_stranger("status", str(copy))
    assert (seen.returncode, "not yours" in seen.stdout) == (0, True)
    acted = place.as_stranger("cancel", str(copy))
    assert (acted.returncode, "belongs to root" in acted.stderr) == (2, True)
