"""The snapshot of the user's project: selects its files and makes an exact copy.

In a git checkout the files are the tracked ones and those neither tracked nor ignored; elsewhere
all files. The output folder, launch folders, and (unless tracked) virtual environments, caches,
exports and secrets are always left out.
"""

from __future__ import annotations

import heapq
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from hpckit.errors import SnapshotError
from hpckit.model.plain import attributes_to_json
from hpckit.model.settings import Code
from hpckit.record.layout import STAGED_DATA
from hpckit.record.snapshot.git import Git, GitState
from hpckit.record.snapshot.secrets import (
    holds_private_key,
    is_secret_explicitly_included,
    is_secret_file,
    is_secret_folder,
)
from hpckit.record.store import PRIVATE_FOLDER, make_private_folder
from hpckit.values import dataclass, field, replace

EXPORT_MARK = ".hpckit-export"
"""File in a folder that an export made: nothing in there is code."""

MAX_FILES = 50_000
"""More files than this are data or an installation, not code."""

_READ_ONLY_FOLDER = 0o500
_READ_ONLY_FILE = 0o400
_MEGABYTE = 1_000_000
_LARGEST_SHOWN = 5
_LOOKED_AT_BEYOND_LIMIT = 5000
_CACHES = frozenset(
    {".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox"}
    | {".ipynb_checkpoints", "node_modules", ".hpckit"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """A file of the project: path below its root, size in bytes; `link` is a symlink's target.

    `tracked` is whether git tracks it, `mtime` when it was last changed (POSIX).
    """

    path: str
    size: int
    executable: bool
    link: str | None = None
    tracked: bool = False
    mtime: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """A project as found: `working_dir` and `python_path` are relative to `root`.

    `files` is None if no snapshot is wanted: then the project itself is used. `origin` is the
    project that the files at `root` were taken from, if it is another folder. `left_out` are files
    and folders (with a slash) that look like secrets. `uncounted` are files that are no part of the
    code when it is compared with other code, as the `points` of sweeps. `outside` is code that runs
    take from elsewhere, with its checksums (`list_outside_code_checksums`).
    """

    root: Path
    working_dir: str
    python_path: tuple[str, ...]
    files: tuple[CodeFile, ...] | None
    git: GitState | None
    origin: Path | None = None
    left_out: tuple[str, ...] = ()
    uncounted: frozenset[str] = frozenset()
    points: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def project(self) -> Path:
        """The folder that the code came from."""
        return self.origin or self.root

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files or ())


def find_project_files_to_freeze(settings: Code, *, cwd: Path, output_dir: Path, git: Git) -> CodeSnapshot:
    """Find the project around `cwd` and list its files; copies nothing.

    Raises SnapshotError if it is too large, unreadable, or does not contain the working folder.
    """
    cwd = cwd.resolve()
    root, checkout = _find_project_root(settings, cwd, git)
    if not cwd.is_relative_to(root):
        raise SnapshotError(
            f"code.root {root} does not contain the working folder {cwd}",
            hint="start hpckit inside the project, or set code.root to a folder around it",
        )
    working_dir = cwd.relative_to(root).as_posix()
    wanted = dict.fromkeys((working_dir, *map(_check_code_path_in_project, settings.paths)))
    project = _Project(root, output_dir.resolve(), git, settings.secrets)
    files = _list_code_files(settings, root, project, checkout=checkout) if settings.snapshot else None
    return CodeSnapshot(
        root=root,
        working_dir=working_dir,
        python_path=tuple(path for path in wanted if (root / path).is_dir()),
        files=files,
        git=git.read_state(root) if checkout else None,
        left_out=tuple(sorted(project.left_out)),
    )


def copy_snapshot(snapshot: CodeSnapshot, folder: Path) -> None:
    """Copy the files into `folder`, which must not exist yet; keeps executable bits and links.

    The copy is read-only: all runs of a launch share it. A file that has vanished since it was
    listed is left out, as git would do. Raises OSError.
    """
    folder.mkdir(mode=PRIVATE_FOLDER)
    make_private_folder(folder / snapshot.working_dir)
    made = {folder}
    for file in snapshot.files or ():
        target = folder / file.path
        if target.parent not in made:
            make_private_folder(target.parent)
            made.add(target.parent)
        if file.link is not None:
            target.symlink_to(file.link)
            continue
        with suppress(FileNotFoundError):
            shutil.copyfile(snapshot.root / file.path, target)
            target.chmod(_READ_ONLY_FOLDER if file.executable else _READ_ONLY_FILE)
    for path, _, _ in os.walk(folder):
        Path(path).chmod(_READ_ONLY_FOLDER)


def _find_project_root(settings: Code, cwd: Path, git: Git) -> tuple[Path, bool]:
    if settings.root is None:
        checkout = git.find_checkout(cwd)
        return (cwd, False) if checkout is None else (checkout.resolve(), True)
    root = (cwd / Path(settings.root).expanduser()).resolve()
    if not root.is_dir():
        raise SnapshotError(
            f"code.root {settings.root!r} is not a folder (looked at {root})",
            hint="name the project's folder, or leave code.root out",
        )
    return root, git.find_checkout(root) is not None


def _check_code_path_in_project(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise SnapshotError(
            f"code.paths holds {path!r}, which is not below the project",
            hint="name folders relative to code.root, such as '.' or 'src'",
        )
    return pure.as_posix()


@dataclass(frozen=True, slots=True)
class _Project:
    """Rules for what does not belong to a project, with the results so far.

    `secrets` are patterns of secrets to include anyway; `left_out` are the secrets not included.
    `tracked` are files that git tracks. `streams` are the files (device and inode) that a shell put
    this process's output into: they change with every launch.
    """

    root: Path
    output_dir: Path
    git: Git
    secrets: list[str]
    left_out: set[str] = field(default_factory=set)
    tracked: set[Path] = field(default_factory=set)
    known: dict[Path, bool] = field(default_factory=dict)
    streams: frozenset[tuple[int, int]] = field(
        default_factory=lambda: frozenset(_list_stdout_and_stderr_inodes())
    )

    def is_in_output_folder(self, path: Path) -> bool:
        """Return whether `path` is in the output folder; one around the project does not count."""
        inside = self.output_dir != self.root and self.output_dir.is_relative_to(self.root)
        return inside and path.is_relative_to(self.output_dir)

    def should_include_untracked_file(self, path: Path) -> bool:
        """Return whether an untracked file is no secret, or is a secret to include anyway."""
        name = PurePosixPath(path.relative_to(self.root))
        secret = is_secret_file(name) or (not path.is_symlink() and holds_private_key(path))
        if not secret or is_secret_explicitly_included(name, self.secrets):
            return True
        around = [parent for parent in name.parents if is_secret_folder(parent)]
        self.left_out.add(f"{around[-1]}/" if around else str(name))
        return False

    def should_skip_untracked_folder(self, folder: Path) -> bool:
        """Return whether an untracked folder, or one above it, is left out."""
        if folder == self.root:
            return False
        if folder not in self.known:
            self.known[folder] = (
                self.should_skip_untracked_folder(folder.parent)
                or self.is_in_output_folder(folder)
                or is_non_code_folder(folder)
            )
        return self.known[folder]


def is_non_code_folder(folder: Path) -> bool:
    """Return whether a folder is a cache, an environment, an export, a launch or a job of Hydra: never code.

    Nor is one that the user may not enter. A folder of Hydra's with Python files may be code that was once
    started there.
    """
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        return True
    of_hydra = (folder / ".hydra" / "hydra.yaml").is_file() or (folder / ".hpckit").is_dir()
    return (
        folder.name in _CACHES
        or (folder / "pyvenv.cfg").is_file()
        or (folder / STAGED_DATA).is_file()
        or (folder / "conda-meta").is_dir()
        or (folder / EXPORT_MARK).is_file()
        or ((folder / "launch.json").is_file() and (folder / "runs").is_dir())
        or (of_hydra and next(folder.glob("*.py"), None) is None)
    )


def _list_code_files(
    settings: Code, root: Path, project: _Project, *, checkout: bool
) -> tuple[CodeFile, ...]:
    paths = _list_checkout_files(root, project) if checkout else _walk_project_files(root, project)
    found = (file for path in paths if (file := _build_code_file_or_none(path, project)) is not None)
    files: list[CodeFile] = []
    size = 0
    for file in found:
        files.append(file)
        size += file.size
        if size > settings.max_mb * _MEGABYTE or len(files) > MAX_FILES:
            files += islice(found, _LOOKED_AT_BEYOND_LIMIT)
            raise _project_too_large_error(settings, root, files)
    held = {file.path for file in files}
    held.update(str(up) for file in files for up in PurePosixPath(file.path).parents)
    found = (_redirect_link_to_copy(file, root, held) for file in files)
    return tuple(sorted(found, key=lambda file: file.path))


def _redirect_link_to_copy(file: CodeFile, root: Path, held: Collection[str]) -> CodeFile:
    """Make a link that leaves the project and returns to a file of it point to the copy."""
    if file.link is None or not file.link.startswith("/"):
        return file
    target = os.path.relpath(os.path.realpath(file.link), root)
    folder = os.path.dirname(file.path)  # noqa: PTH120
    return replace(file, link=os.path.relpath(target, folder)) if target in held else file


def _project_too_large_error(settings: Code, root: Path, files: list[CodeFile]) -> SnapshotError:
    largest = heapq.nlargest(_LARGEST_SHOWN, files, key=lambda file: file.size)
    listing = ", ".join(f"{file.path} ({file.size / _MEGABYTE:.1f} MB)" for file in largest)
    return SnapshotError(
        f"the code snapshot of {root} is too large: more than {settings.max_mb:g} MB "
        f"(code.max_mb) or {MAX_FILES} files; largest: {listing}",
        hint="put data into .gitignore (which counts in git repositories alone: `git init`) or "
        "outside the project, choose a smaller folder with code.root=DIR, raise code.max_mb, or "
        "turn the snapshot off: code.snapshot=false",
    )


def _list_checkout_files(folder: Path, project: _Project) -> Iterator[Path]:
    """Yield the files of a checkout and of the checkouts inside it (submodules, clones)."""
    for name in project.git.list_tracked_files(folder):
        path = folder / name
        if project.is_in_output_folder(path):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _list_checkout_files(path, project) if (path / ".git").exists() else ()
        else:
            project.tracked.add(path)
            yield path
    for name in project.git.list_untracked_files(folder):
        path = folder / name
        if project.should_skip_untracked_folder(path if name.endswith("/") else path.parent):
            continue
        if name.endswith("/"):
            yield from _list_checkout_files(path, project)
        elif not project.is_in_output_folder(path) and project.should_include_untracked_file(path):
            yield path


def _walk_project_files(folder: Path, project: _Project) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_raise_unreadable_folder):
        here = Path(parent)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in links and not project.should_skip_untracked_folder(here / name)
        )
        paths = (here / name for name in sorted([*files, *links]))
        yield from (path for path in paths if project.should_include_untracked_file(path))


def _raise_unreadable_folder(error: OSError) -> None:
    raise SnapshotError(
        f"the project holds a folder that cannot be read: {error}",
        hint="choose a smaller folder with code.root=DIR, or turn it off: code.snapshot=false",
    )


def _build_code_file_or_none(path: Path, project: _Project) -> CodeFile | None:
    """Return the file as it is; None if it is gone, our output, unreadable, or neither a file nor a link."""
    root = project.root
    try:
        status = path.lstat()
        link = _read_link_target(path, root) if stat.S_ISLNK(status.st_mode) else None
    except FileNotFoundError:
        return None
    ours = (status.st_dev, status.st_ino) in project.streams
    # What git does not know and the user cannot read is somebody else's.
    known = link is not None or path in project.tracked
    theirs = not known and not os.access(path, os.R_OK, effective_ids=True)
    if ours or theirs or (link is None and not stat.S_ISREG(status.st_mode)):
        return None
    return CodeFile(
        path=path.relative_to(root).as_posix(),
        size=0 if link is not None else status.st_size,
        executable=bool(status.st_mode & stat.S_IXUSR),
        link=link,
        tracked=path in project.tracked,
        mtime=status.st_mtime,
    )


def _list_stdout_and_stderr_inodes() -> Iterator[tuple[int, int]]:
    for stream in (1, 2):
        with suppress(OSError):  # closed
            status = os.fstat(stream)
            yield status.st_dev, status.st_ino


def _read_link_target(path: Path, root: Path) -> str:
    """Return a symlink's target, made absolute if it leads out of the project on its way."""
    target = path.readlink()
    within = os.path.normpath(path.relative_to(root).parent / target)
    leaves = within.startswith(("/", "../")) or within == ".."
    return os.path.normpath(path.parent / target) if leaves else str(target)


def snapshot_to_json(snapshot: CodeSnapshot) -> Mapping[str, object]:
    """Return the content of code.json for a snapshot."""
    return {
        "v": 1,
        "project": str(snapshot.project),
        "snapshot": snapshot.files is not None,
        "files": len(snapshot.files or ()),
        **attributes_to_json(snapshot, "bytes=size commit=git.commit branch=git.branch dirty=git.dirty"),
        "left_out": snapshot.left_out,
        "uncounted": sorted(snapshot.uncounted),
        **attributes_to_json(snapshot, "points outside"),
    }
