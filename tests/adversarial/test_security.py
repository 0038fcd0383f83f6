"""Promises of docs/security.md: what other users of the same machine can and cannot do.

Folders of strangers really belong to another user, so that these tests need root.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.context import Context
from hpckit.cli.main import main

STRANGER = 65534
NEWEST = "tr-20991231-235959-evil"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make folders that belong to another user"
)


_BECOME_STRANGER = f"""
import contextlib, io, os, sys
from hpckit.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main(sys.argv[1:])  # imports what it needs, while it may
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a verb ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A sticky folder that everybody may write to, such as a shared scratch."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> Path:
        """The shared folder of launches."""
        return self.folder / "outputs"

    @property
    def trace(self) -> Path:
        """What a stranger's programs leave behind when they run."""
        return self.folder / "trace"

    def hpckit(self, *words: str) -> Said:
        """Run `hpckit WORDS` as the caller."""
        out, err = io.StringIO(), io.StringIO()
        context = Context(
            environ=self.environ,
            cwd=self.folder / "project",
            stdout=out,
            stderr=err,
            now=lambda: datetime.now(UTC),
            sleep=time.sleep,
        )
        return Said(returncode=main(words, context), stdout=out.getvalue(), stderr=err.getvalue())

    def as_stranger(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `hpckit WORDS` as another user, who may not be able to read this Python."""
        return subprocess.run(
            [sys.executable, "-c", _BECOME_STRANGER, *words],
            cwd=self.folder / "project",
            env={**self.environ, "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def plant(self, source: Path, name: str = NEWEST, **cluster: Any) -> Path:
        """Let a stranger put a changed copy of a launch there."""
        folder = self.outputs / name
        shutil.copytree(source, folder, symlinks=True)
        text = (folder / "launch.json").read_text().replace(source.name, name)
        record = json.loads(text)
        record["cluster"] |= cluster
        (folder / "launch.json").write_text(json.dumps(record))
        give(folder)
        return folder


def give(folder: Path) -> None:
    """Make the stranger own a tree that everybody may read."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every path below a folder with its size and time."""
    return {
        str(path): (seen.st_size, seen.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if (seen := path.lstat())
    }


@pytest.fixture(scope="module")
def world(path_without_slurm: str) -> Iterator[Place]:
    """Make the shared place, and a project in it."""
    folder = Path(tempfile.mkdtemp(prefix="hpckit-shared-"))
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
    place = Place(
        folder=folder,
        environ={
            **environ,
            "PATH": path_without_slurm,
            "HPCKIT_QUEUE_AGE_S": "0",
            "HPCKIT_OUTPUTS": str(folder / "outputs"),
        },
    )
    folder.chmod(0o1777)
    place.outputs.mkdir()
    place.outputs.chmod(0o1777)
    (folder / "project").mkdir()
    yield place
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def mine(world: Place) -> Path:
    """Return a launch of the caller's that has completed."""
    done = world.hpckit(*LAUNCH, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["dir"])


LAUNCH = ("launch", "experiment=command", "command=[true]", "cluster=local", "+params.i=0")


@pytest.fixture
def place(world: Place, mine: Path) -> Iterator[Place]:
    """Return the shared place; take away what a test put there."""
    yield world
    for path in world.outputs.iterdir():
        if path != mine:
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    world.trace.unlink(missing_ok=True)


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


@pytest.mark.parametrize("verb", ["status", "logs", "results"])
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


def test_security_latest_launch_is_the_callers_own(place: Place, trap: Path, mine: Path) -> None:
    """In a shared folder, verbs without a name mean the caller's latest launch."""
    document = json.loads(place.hpckit("status", "--json").stdout)
    assert (document["launch"], document["foreign"]) == (mine.name, None)
    assert not place.trace.exists()
    assert trap.exists()


def test_security_name_of_a_strangers_launch_does_not_hide_ones_own(
    place: Place, mine: Path
) -> None:
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
        ("janitor", "{folder}", "--job", "0"),
        ("orphaned", "{folder}", "--job", "0", "--run", "0", "1"),
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
def test_security_launch_that_others_may_write_to_is_a_strangers(
    place: Place, mine: Path, mode: int
) -> None:
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


def test_security_folder_that_everybody_may_change_holds_no_launch(
    place: Place, mine: Path
) -> None:
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


def test_security_link_of_a_stranger_is_not_followed(
    place: Place, mine: Path, tmp_path: Path
) -> None:
    """A link that another user put into a shared folder makes no launch of what it points to."""
    link = place.outputs / NEWEST
    link.symlink_to(mine)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    document = json.loads(place.hpckit("status", "--json").stdout)
    assert document["launch"] == mine.name
    listed = json.loads(place.hpckit("ls", "--json").stdout)["launches"]
    assert {one["dir"]: one["foreign"] is None for one in listed} == {
        str(link): False,
        str(mine): True,
    }
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


def test_security_other_users_see_a_launch_they_may_read_as_evidence(
    place: Place, mine: Path
) -> None:
    """Not even root's launch is another user's to act on; they may look where they may read."""
    copy = place.outputs / "root-20260101-000000-ab12"
    shutil.copytree(mine, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    seen = place.as_stranger("status", str(copy))
    assert (seen.returncode, "not yours" in seen.stdout) == (0, True)
    acted = place.as_stranger("cancel", str(copy))
    assert (acted.returncode, "belongs to root" in acted.stderr) == (2, True)
