"""What git knows of a folder: its files, its commit, what differs from it.

Responsible for asking git, read-only, and for telling "no checkout here" from "git refuses"; it
must not copy files. Remotes are not asked for: their addresses may hold passwords.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.errors import SnapshotError

_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short")
_LEAKING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Set where hpckit is called from a git hook; they would point git at another checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """A checkout's state. `commit` is null before the first commit, `branch` when detached."""

    commit: str | None
    branch: str | None
    dirty: bool
    diff: str


@dataclass(frozen=True, slots=True)
class Git:
    """git with the environment it runs in."""

    environ: Mapping[str, str]

    @property
    def installed(self) -> bool:
        """Whether there is a git on PATH; compute nodes often have none."""
        return shutil.which("git", path=self.environ.get("PATH", os.defpath)) is not None

    def checkout(self, folder: Path) -> Path | None:
        """Return the top of the checkout that holds `folder`, or None where git keeps out.

        A folder that its checkout ignores counts as outside: git would list none of its files.
        Raises SnapshotError where git refuses to say.
        """
        top = self._ask(folder, "rev-parse", "--show-toplevel")
        if top is None:
            return None
        ignored = self._run(folder, "check-ignore", "-q", ".")
        return None if ignored is not None and ignored.returncode == 0 else Path(top.rstrip("\n"))

    def tracked(self, folder: Path) -> list[str]:
        """Return the tracked paths below `folder`; a submodule is one path, a folder."""
        return self._paths(folder, "ls-files", "-z", "--cached")

    def untracked(self, folder: Path) -> list[str]:
        """Return paths neither tracked nor ignored; a checkout inside ends with a slash."""
        return self._paths(folder, "ls-files", "-z", "--others", "--exclude-standard")

    def state(self, folder: Path) -> GitState:
        """Return the state of the checkout, as far as it concerns `folder`."""
        commit = self._try(folder, "rev-parse", "--verify", "HEAD")
        diff = "" if commit is None else self._try(folder, "diff", *_PLAIN, "HEAD", "--", ".") or ""
        changes = self._try(folder, "status", "--porcelain", "-z", "--", ".")
        return GitState(
            commit=commit and commit.strip(),
            branch=(self._try(folder, "symbolic-ref", "--short", "-q", "HEAD") or "").strip()
            or None,
            dirty=bool(changes),
            diff=diff,
        )

    def _paths(self, folder: Path, *words: str) -> list[str]:
        text = self._ask(folder, *words)
        return [path for path in (text or "").split("\0") if path]

    def _try(self, folder: Path, *words: str) -> str | None:
        done = self._run(folder, *words)
        return done.stdout if done is not None and done.returncode == 0 else None

    def _ask(self, folder: Path, *words: str) -> str | None:
        done = self._run(folder, *words)
        if done is None or "not a git repository" in done.stderr:
            return None
        if done.returncode != 0:
            raise SnapshotError(
                f"git {words[0]} failed in {folder}: {done.stderr.strip()}",
                hint="let git read the project, name another one with code.root=DIR, or leave the "
                "snapshot out with code.snapshot=false",
            )
        return done.stdout

    def _run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
        environ = {key: value for key, value in self.environ.items() if key not in _LEAKING}
        try:
            return subprocess.run(
                ["git", "-C", str(folder), *words],  # noqa: S607  # the git of the user's PATH
                env=environ | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            return None
