"""The folder of a run's checkpoints: names, listing, order and removal.

Only folders with the names that this module gives are ever touched, and only the user's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hpckit.record.store import make_folder
from hpckit.runtime.checkpoint import manifest as manifests
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.manifest import Manifest, sync_folder
from hpckit.runtime.checkpoint.ownership import check_checkpoint_owner, check_one, make_own

_NAME = re.compile(r"step-(\d{8,})\.e(\d+)\.([0-9a-f]{8})")
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
    def torn(self) -> bool:
        """Whether it was never committed."""
        return self.manifest is None and not self.damage

    @property
    def order(self) -> tuple[int, int, int]:
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
    _whole: dict[str, tuple[tuple[int, int, int], CheckpointEntry]] = field(
        default_factory=dict, init=False
    )

    @property
    def journal(self) -> Path:
        """The file of what was attempted, proved and rejected."""
        return self.folder / "journal.jsonl"

    def new(self, step: int, epoch: int) -> Path:
        """Make a new, unused folder for a save; raises OSError, ForeignFolderError."""
        make_own(self.folder, self._shared)
        path = self.folder / f"step-{step:08d}.e{epoch}.{os.urandom(4).hex()}"
        make_folder(path, exist_ok=False)
        sync_folder(self.folder)
        return path

    def entries(self) -> list[CheckpointEntry]:
        """Return all checkpoint folders, newest first; raises OSError, ForeignFolderError."""
        check_checkpoint_owner(self.folder, self._shared)
        if not self.folder.is_dir():
            return []
        matches = [(path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir()]
        found = [
            self._entry(path, int(match[1]), int(match[2]))
            for path, match in matches
            if match is not None and path.is_dir()
        ]
        return sorted(found, key=lambda one: one.order, reverse=True)

    @property
    def _shared(self) -> Path:
        return self.folder.parent if self.shared is None else self.shared

    def _entry(self, folder: Path, step: int, epoch: int) -> CheckpointEntry:
        check_one(folder)
        try:
            stamp = _stamp(folder)
        except OSError:
            return _entry(folder, step, epoch)
        known, entry = self._whole.get(folder.name, (None, None))
        if entry is None or known != stamp:
            entry = _entry(folder, step, epoch)
        if entry.manifest is not None:
            self._whole[folder.name] = stamp, entry
        return entry

    def know(self, folder: Path, manifest: Manifest) -> None:
        """Remember a checkpoint that was just committed: its files were measured when written."""
        entry = CheckpointEntry(
            folder=folder, step=manifest.step, epoch=manifest.epoch, manifest=manifest
        )
        with contextlib.suppress(OSError):
            self._whole[folder.name] = _stamp(folder), entry

    def folders(self) -> frozenset[Path]:
        """Return the existing checkpoint folders, whatever their state; raises OSError."""
        return frozenset(entry.folder for entry in self.entries())

    def remove(self, folder: Path) -> None:
        """Remove a checkpoint: first its commit, then its files; raises OSError."""
        self._whole.pop(folder.name, None)
        with contextlib.suppress(FileNotFoundError):
            (folder / manifests.NAME).rename(folder / f".{manifests.NAME}{_REMOVED}")
            sync_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _stamp(folder: Path) -> tuple[int, int, int]:
    """Return values that change with a manifest; raises OSError."""
    about = (folder / manifests.NAME).stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def _entry(folder: Path, step: int, epoch: int) -> CheckpointEntry:
    try:
        manifest = manifests.read_manifest(folder)
    except FileNotFoundError:
        return CheckpointEntry(folder=folder, step=step, epoch=epoch)
    except OSError as error:
        why = f"its manifest cannot be read: {error.strerror or error}"
        return CheckpointEntry(folder=folder, step=step, epoch=epoch, damage=why)
    except CheckpointError as error:
        return CheckpointEntry(folder=folder, step=step, epoch=epoch, damage=str(error))
    if (manifest.step, manifest.epoch) != (step, epoch):
        said = f"step {manifest.step} of attempt {manifest.epoch}"
        return CheckpointEntry(
            folder=folder, step=step, epoch=epoch, damage=f"the manifest is of {said}"
        )
    damage = manifests.check_sizes(folder, manifest)
    if damage:
        return CheckpointEntry(folder=folder, step=step, epoch=epoch, damage=damage)
    return CheckpointEntry(folder=folder, step=step, epoch=epoch, manifest=manifest)
