"""The folder of a run's checkpoints: names, listing, order and removal.

Only folders with the names that this module gives are ever touched, and only the user's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from hpckit.patterns import lazy_pattern
from hpckit.record.ownership import (
    ForeignFolder,
    explain_unsafe_ownership,
    explain_unsafe_path,
    read_path_status,
)
from hpckit.record.store import PRIVATE_FOLDER, make_private_folder
from hpckit.runtime.checkpoint import manifest as manifests
from hpckit.runtime.checkpoint.errors import CheckpointError, ForeignFolderError
from hpckit.runtime.checkpoint.manifest import Manifest, sync_folder
from hpckit.values import dataclass, field, replace


def make_private_folders(folder: Path, shared: Path) -> None:
    """Make a folder and all levels below `shared`, for the user alone.

    `shared`, which the user names, may be open to others (a sticky scratch): anyone who is first
    may put a folder there under the name that ours will have.
    Raises ForeignFolderError if one of them does not belong to the user, and OSError.
    """
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    for level in _list_levels_below(folder, shared):
        level.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        check_owner_of_each_level(level, shared)


def check_owner_of_each_level(folder: Path, shared: Path) -> None:
    """Raise ForeignFolderError unless a folder, and the levels up to `shared`, are the user's.

    Levels that do not exist yet are skipped. Raises OSError, too.
    """
    levels = [level for level in _list_levels_below(folder, shared) if os.path.lexists(level)]
    if levels:
        _refuse_foreign_folder(explain_unsafe_path(levels[0]))
    for level in levels:
        check_folder_owner(level)


def check_folder_owner(folder: Path) -> None:
    """Raise ForeignFolderError unless this folder is the user's.

    For a link of the user, its target is checked.
    """
    caller, seen = os.geteuid(), read_path_status(folder)
    if stat.S_ISLNK(seen.mode) and seen.uid == caller:
        seen = read_path_status(Path(os.path.realpath(folder)))
    _refuse_foreign_folder(explain_unsafe_ownership(seen, caller))


def _list_levels_below(folder: Path, shared: Path) -> list[Path]:
    """Return the folder and its parents below `shared`, starting with the outermost."""
    above = [level for level in folder.parents if shared in level.parents]
    return [*reversed(above), folder]


def _refuse_foreign_folder(stranger: ForeignFolder | None) -> None:
    if stranger is not None:
        raise ForeignFolderError(
            f"checkpoints must lie in folders that belong to you: {stranger.reason}",
            hint="nothing in it was read; move it away, or have it removed, or choose another checkpoint.dir",
        )


_NAME = lazy_pattern(r"step-(\d{8,})\.e(\d+)\.([0-9a-f]{8})")
_REMOVED = ".removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One folder: committed (with its manifest), damaged (with the reason) or torn (neither)."""

    folder: Path
    step: int
    epoch: int
    manifest: Manifest | None = None
    damage: str = ""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def is_uncommitted(self) -> bool:
        """Whether it was never committed."""
        return self.manifest is None and not self.damage

    @property
    def age_sort_key(self) -> tuple[int, int, int]:
        """Key that sorts by age.

        The attempt comes first: what a later attempt saved descends from what it chose to load, and
        a late commit of an attempt that was cut off never outranks it.
        """
        return self.epoch, self.manifest.serial if self.manifest else self.step, self.step


@dataclass(slots=True)
class CheckpointFolder:
    """The checkpoints of one run.

    `shared` is the folder above them that others may also write to; None if it is the folder that
    directly contains them. Folders that were found complete are remembered by their manifest, so
    that a save does not query each of the thousands of files of older ones.
    """

    folder: Path
    shared: Path | None = None
    _whole: dict[str, tuple[tuple[int, int, int], CheckpointEntry]] = field(default_factory=dict, init=False)

    @property
    def journal_path(self) -> Path:
        """The file of what was attempted, proved and rejected."""
        return self.folder / "journal.jsonl"

    def make_save_folder(self, step: int, epoch: int) -> Path:
        """Make a new, unused folder for a save; raises OSError, ForeignFolderError."""
        make_private_folders(self.folder, self._shared_folder)
        path = self.folder / f"step-{step:08d}.e{epoch}.{os.urandom(4).hex()}"
        make_private_folder(path, exist_ok=False)
        sync_folder(self.folder)
        return path

    def list_entries(self) -> list[CheckpointEntry]:
        """Return all checkpoint folders, newest first; raises OSError, ForeignFolderError."""
        check_owner_of_each_level(self.folder, self._shared_folder)
        if not self.folder.is_dir():
            return []
        matches = [(path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir()]
        found = [
            self._read_cached_entry(path, int(match[1]), int(match[2]))
            for path, match in matches
            if match is not None and path.is_dir()
        ]
        return sorted(found, key=lambda one: one.age_sort_key, reverse=True)

    @property
    def _shared_folder(self) -> Path:
        return self.folder.parent if self.shared is None else self.shared

    def _read_cached_entry(self, folder: Path, step: int, epoch: int) -> CheckpointEntry:
        check_folder_owner(folder)
        try:
            stamp = _read_manifest_stamp(folder)
        except OSError:
            return _read_entry(folder, step, epoch)
        known, entry = self._whole.get(folder.name, (None, None))
        if entry is None or known != stamp:
            entry = _read_entry(folder, step, epoch)
        if entry.manifest is not None:
            self._whole[folder.name] = stamp, entry
        return entry

    def remember_commit(self, folder: Path, manifest: Manifest) -> None:
        """Remember a checkpoint that was just committed: its files were measured when written."""
        entry = CheckpointEntry(folder=folder, step=manifest.step, epoch=manifest.epoch, manifest=manifest)
        with contextlib.suppress(OSError):
            self._whole[folder.name] = _read_manifest_stamp(folder), entry

    def remove_checkpoint(self, folder: Path) -> None:
        """Remove a checkpoint: first its commit, then its files; raises OSError."""
        self._whole.pop(folder.name, None)
        with contextlib.suppress(FileNotFoundError):
            (folder / manifests.NAME).rename(folder / f".{manifests.NAME}{_REMOVED}")
            sync_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _read_manifest_stamp(folder: Path) -> tuple[int, int, int]:
    """Return values that change with a manifest; raises OSError."""
    about = (folder / manifests.NAME).stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def _read_entry(folder: Path, step: int, epoch: int) -> CheckpointEntry:
    entry = CheckpointEntry(folder=folder, step=step, epoch=epoch)
    try:
        manifest = manifests.read_manifest(folder)
    except FileNotFoundError:
        return entry
    except OSError as error:
        return replace(entry, damage=f"its manifest cannot be read: {error.strerror or error}")
    except CheckpointError as error:
        return replace(entry, damage=str(error))
    if (manifest.step, manifest.epoch) != (step, epoch):
        damage = f"the manifest is of step {manifest.step} of attempt {manifest.epoch}"
    else:
        damage = manifests.explain_wrong_size(folder, manifest)
    return replace(entry, damage=damage) if damage else replace(entry, manifest=manifest)
