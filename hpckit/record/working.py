"""The working folder of a run: the frozen code as programs see it, and a place to write.

Relative paths lead to the code, while new files stay with the run. Once the run has completed,
everything that only leads to the code is removed; what the run wrote is never touched.
docs/adr/0037-each-run-works-in-its-own-folder.md has the reasons.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hpckit.model.launch import WorkingFolder
from hpckit.record.launches import Launch
from hpckit.record.store import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from hpckit.values import dataclass, field

_MOST_ENTRIES = 200
"""After this many entries, further folders become one link each: a sweep makes them per run."""
_COPIED_BYTES = 1_000_000
_MOST_BYTES = 10_000_000
"""Files up to _COPIED_BYTES each, and up to _MOST_BYTES in total, are copied, so that a program may
rewrite them; larger ones are links to the read-only code.
"""


def find_working_folder(launch: Launch, index: int, kind: WorkingFolder) -> Path:
    """Return the folder that the ranks of a run start in."""
    inside = Path(launch.code.working_dir).relative_to(launch.code.root)
    match kind:
        case WorkingFolder.run:
            return launch.paths.run(index).work / inside
        case WorkingFolder.code:
            return Path(launch.code.working_dir)
        case WorkingFolder.project:
            return launch.code.project / inside


def fill_working_folder(launch: Launch, index: int) -> None:
    """Create the run's own folder, or complete that of an earlier attempt; raises OSError."""
    link_code_into_folder(Path(launch.code.root), Path(launch.code.working_dir), launch.paths.run(index).work)


def link_code_into_folder(root: Path, working_dir: Path, work: Path) -> None:
    """Fill a folder so that relative paths lead to the code below `root`; raises OSError.

    `working_dir`, below `root`, is the folder that programs start in.
    """
    _Filling(root=root, working_dir=working_dir, work=work).fill_from_code()


@dataclass(slots=True, kw_only=True)
class _Filling:
    """One working folder being created, and the entries and bytes left for it."""

    root: Path
    working_dir: Path
    work: Path
    entries: int = _MOST_ENTRIES
    size: int = _MOST_BYTES
    _waiting: deque[tuple[Path, Path]] = field(default_factory=deque)

    def fill_from_code(self) -> None:
        """Go through the code from the top, folder by folder."""
        self._waiting.append((self.root, self.work))
        while self._waiting:
            source, target = self._waiting.popleft()
            make_private_folder(target)
            for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
                self._link_or_copy_entry(entry, target / entry.name)

    def _link_or_copy_entry(self, entry: os.DirEntry[str], target: Path) -> None:
        if self._should_be_real_folder(entry):
            if not target.is_symlink() and (target.is_dir() or not target.exists()):
                self._waiting.append((Path(entry.path), target))
        elif os.path.lexists(target):
            pass  # from an earlier attempt, which may have rewritten it
        elif self._should_be_copied_not_linked(entry):
            _copy_file_atomically(entry, target)
        else:
            target.symlink_to(os.path.relpath(entry.path, target.parent))

    def _should_be_real_folder(self, entry: os.DirEntry[str]) -> bool:
        """Return whether to create a real folder, so that the run may write into it.

        Packages and hidden folders are linked: they are large, and programs seldom write there.
        """
        if not entry.is_dir(follow_symlinks=False):
            return False
        if self.working_dir.is_relative_to(entry.path):
            return True
        if entry.name.startswith(".") or self.work.is_relative_to(entry.path):
            return False
        with os.scandir(entry.path) as scan:
            inside = list(islice(scan, self.entries + 1))
        if len(inside) > self.entries or any(map(_is_python_file, inside)):
            return False
        self.entries -= len(inside)
        return True

    def _should_be_copied_not_linked(self, entry: os.DirEntry[str]) -> bool:
        if _is_python_file(entry) or not entry.is_file(follow_symlinks=False):
            return False
        size = entry.stat().st_size
        if size > min(_COPIED_BYTES, self.size):
            return False
        self.size -= size
        return True


def _is_python_file(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".py")


def _copy_file_atomically(entry: os.DirEntry[str], target: Path) -> None:
    """Copy a file under another name first, so that an interruption leaves no partial file."""
    about = entry.stat()
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    shutil.copyfile(entry.path, part)
    part.chmod(PRIVATE_FOLDER if about.st_mode & 0o100 else PRIVATE_FILE)
    os.utime(part, ns=(about.st_atime_ns, about.st_mtime_ns))
    part.replace(target)


def remove_code_from_working_folder(launch: Launch, index: int) -> None:
    """Remove what leads to the code or is unchanged from it; best effort.

    What a run wrote stays, and so does every folder that it wrote into.
    """
    with contextlib.suppress(OSError):
        _remove_unchanged_entries(launch.paths.run(index).work, Path(launch.code.root))


def _remove_unchanged_entries(work: Path, code: Path) -> None:
    for entry in list(os.scandir(work)):
        here, there = Path(entry.path), code / entry.name
        if entry.is_symlink():
            if str(here.readlink()) == os.path.relpath(there, work):
                here.unlink()
        elif entry.is_dir():
            if there.is_dir() and not there.is_symlink():
                _remove_unchanged_entries(here, there)
        elif _is_unchanged_copy(entry, there):
            here.unlink()
    with contextlib.suppress(OSError):  # not empty
        work.rmdir()


def _is_unchanged_copy(entry: os.DirEntry[str], there: Path) -> bool:
    with contextlib.suppress(OSError):
        ours, frozen = entry.stat(follow_symlinks=False), there.lstat()
        return (ours.st_size, ours.st_mtime_ns) == (frozen.st_size, frozen.st_mtime_ns)
    return False


def list_files_written_into_code(launch: Launch, since: Path) -> Iterator[str]:
    """Yield the files in the frozen code changed after `since`, a file on the same file system.

    Files compiled by Python do not count. Only root can write there: mode bits stop other users.
    """
    if os.geteuid() != 0:
        return
    began = since.stat().st_mtime_ns
    for folder, _, names in os.walk(launch.paths.code):
        for path in (Path(folder, name) for name in names if not name.endswith(".pyc")):
            if path.lstat().st_mtime_ns > began:
                yield str(path.relative_to(launch.paths.code))
