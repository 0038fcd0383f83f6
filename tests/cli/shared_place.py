"""A place that several users share: what the tests of security are about.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context
from waiting import run_to_end, until

from hpckit.cli.main import main

STRANGER = 65534
NEWEST = "tr-20991231-235959-evil"

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


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


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

    def hpckit(self, *words: str, terminal: bool = False) -> Said:
        """Run `hpckit WORDS` as the caller, perhaps before a terminal."""
        out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
        context = make_context(self.folder / "project", self.environ, stdout=out, stderr=err)
        return Said(returncode=main(words, context), stdout=out.getvalue(), stderr=err.getvalue())

    def as_stranger(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `hpckit WORDS` as another user, who may not be able to read this Python."""
        return run_to_end(
            [sys.executable, "-c", _BECOME_STRANGER, *words],
            cwd=self.folder / "project",
            env={**self.environ, "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder)},
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
    folder = Path(json.loads(done.stdout)["dir"])
    # Its supervisor removes the working folder after it has recorded the end.
    until(lambda: not any(folder.glob("runs/*/work")))
    return folder


LAUNCH = ("launch", "experiment=command", "command=[true]", "cluster=local", "+params.i=0")


@pytest.fixture
def place(world: Place, mine: Path) -> Iterator[Place]:
    """Return the shared place; take away what a test put there."""
    yield world
    for path in world.outputs.iterdir():
        if path != mine:
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    world.trace.unlink(missing_ok=True)


BY_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make folders that belong to another user"
)
