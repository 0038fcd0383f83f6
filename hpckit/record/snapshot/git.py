"""Reads a folder's state from git: its files, its commit, and the differences from it.

It is read-only, and tells "no checkout here" from "git refuses". Remotes are not read: their
addresses may contain passwords.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hpckit.errors import SnapshotError
from hpckit.values import dataclass

_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short")
_LEAKING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Set when hpckit is called from a git hook; they would point git at another checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """A checkout's state. `commit` is None before the first commit, `branch` when detached."""

    commit: str | None
    branch: str | None
    dirty: bool
    diff: str


@dataclass(frozen=True, slots=True)
class Git:
    """git with the environment it runs in."""

    environ: Mapping[str, str]

    @property
    def is_installed(self) -> bool:
        """Whether git is on PATH; compute nodes often have none."""
        return shutil.which("git", path=self.environ.get("PATH", os.defpath)) is not None

    def find_checkout(self, folder: Path) -> Path | None:
        """Return the top of the checkout that contains `folder`, or None if git does not apply.

        A folder that its checkout ignores counts as outside: git would list none of its files.
        Raises SnapshotError if git refuses to answer.
        """
        top = self._run_or_raise(folder, "rev-parse", "--show-toplevel")
        if top is None:
            return None
        ignored = self._run(folder, "check-ignore", "-q", ".")
        return None if ignored is not None and ignored.returncode == 0 else Path(top.rstrip("\n"))

    def list_tracked_files(self, folder: Path) -> list[str]:
        """Return the tracked paths below `folder`; a submodule is one path, a folder."""
        return self._list_paths_in_output(folder, "ls-files", "-z", "--cached")

    def list_untracked_files(self, folder: Path) -> list[str]:
        """Return paths neither tracked nor ignored; a nested checkout ends with a slash."""
        return self._list_paths_in_output(folder, "ls-files", "-z", "--others", "--exclude-standard")

    def read_state(self, folder: Path) -> GitState:
        """Return the state of the checkout, limited to `folder`."""
        commit = self._run_or_none(folder, "rev-parse", "--verify", "HEAD")
        diff = "" if commit is None else self._run_or_none(folder, "diff", *_PLAIN, "HEAD", "--", ".") or ""
        changes = self._run_or_none(folder, "status", "--porcelain", "-z", "--", ".")
        return GitState(
            commit=commit and commit.strip(),
            branch=(self._run_or_none(folder, "symbolic-ref", "--short", "-q", "HEAD") or "").strip() or None,
            dirty=bool(changes),
            diff=diff,
        )

    def export_commit(self, folder: Path, commit: str, diff: str, into: Path) -> Path | None:
        """Write a commit with a diff applied into an empty folder; the checkout is not changed.

        Returns where `folder` is in it, None if that commit or that diff is not available.
        """
        top = self._run_or_none(folder, "rev-parse", "--show-toplevel") if folder.is_dir() else None
        if top is None:
            return None
        checkout = Path(top.rstrip("\n"))
        index = {"GIT_INDEX_FILE": str(into / ".index")}
        read = self._run(checkout, "read-tree", commit, more=index)
        words = ("checkout-index", "--all", "--force", f"--prefix={into}/")
        written = read is not None and read.returncode == 0 and self._run(checkout, *words, more=index)
        (into / ".index").unlink(missing_ok=True)
        if not written or written.returncode != 0 or not self._apply_diff(diff, into):
            return None
        return into / folder.resolve().relative_to(checkout.resolve())

    def _apply_diff(self, diff: str, folder: Path) -> bool:
        outside = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        words = ("apply", "--whitespace=nowarn", "-")
        applied = self._run(folder, *words, text=diff, more=outside) if diff else None
        return not diff or (applied is not None and applied.returncode == 0)

    def _list_paths_in_output(self, folder: Path, *words: str) -> list[str]:
        text = self._run_or_raise(folder, *words)
        return [path for path in (text or "").split("\0") if path]

    def _run_or_none(self, folder: Path, *words: str) -> str | None:
        done = self._run(folder, *words)
        return done.stdout if done is not None and done.returncode == 0 else None

    def _run_or_raise(self, folder: Path, *words: str) -> str | None:
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

    def _run(
        self, folder: Path, *words: str, text: str = "", more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str] | None:
        kept = {key: value for key, value in self.environ.items() if key not in _LEAKING}
        environ = kept | dict(more or {})
        try:
            return subprocess.run(
                ["git", "-C", str(folder), *words],  # noqa: S607  # the git of the user's PATH
                env=environ | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
                input=text,
            )
        except FileNotFoundError:
            return None
