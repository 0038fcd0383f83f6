"""Brings the packed environment of a launch to a node, and starts the agent from there.

Where user namespaces are allowed, the agent and its ranks see it at its own path, so that programs,
shebangs and editable installs work as they do elsewhere. Else they start the Python of an unpacked copy.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess  # noqa: TID251  # the programs that unpack
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.features.staging.environment import FOLDER, Packed, list_entries
from hpckit.features.staging.items import FrozenSource, How, Kind, StageItem
from hpckit.features.staging.mounting import can_mount_images, show_folders_at_paths
from hpckit.features.staging.place import (
    NodeDataError,
    end_use,
    evict_copies,
    has_run_ended,
    hold_lock,
    is_in_use,
    make_room,
    rewrite_manifest,
)
from hpckit.features.staging.stager import Stager
from hpckit.model.failure import Cause
from hpckit.model.node_setup import Data, KeptData, StagedData
from hpckit.model.plain import to_plain
from hpckit.record.remove import remove_path
from hpckit.record.store import make_private_folder, read_json_object, write_text_atomically
from hpckit.runtime.environ import STAGED_ENVIRONMENT, find_node_name
from hpckit.values import dataclass

_NAME = "environment"
_QUOTED = 400
_PART, _STAMP = ".part", "unpacked.digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """A launch's environment on this node, whose folder for data is `folder`.

    `launch` is the folder of the launch; `owner` says for which run it comes.
    """

    packed: Packed
    launch: Path
    folder: Path
    data: Data
    owner: Mapping[str, Any]

    def start(self, words: Sequence[str], environ: dict[str, str]) -> list[str]:
        """Return the words that start the agent from this node's environment; raises NodeDataError, OSError.

        `words` are those that start it from the shared one. Its variables, `environ`, say what was done.
        """
        begin, path = time.monotonic(), environ.get("PATH", os.defpath)
        mounted = self.packed.file.endswith(".sqsh") and can_mount_images(path)
        stager = self._build_stager(environ)
        trusted = is_in_use(stager.manifest)
        kept = stager.stage() == "kept"
        atexit.register(self._leave, stager)
        if not mounted:
            kept = self._unpack(stager, trusted=trusted) and kept
        seconds, size = round(time.monotonic() - begin, 3), self.packed.size_bytes
        where, words = self._choose_start(stager, list(words), mounted=mounted)
        node, how = find_node_name(), "kept" if kept else "mounted" if mounted else "copied"
        staged = StagedData(node=node, name=_NAME, bytes=size, seconds=seconds, how=how)
        environ[STAGED_ENVIRONMENT] = json.dumps(to_plain(staged))
        sys.stderr.write(f"hpckit: environment {self.packed.key} on {node}: {how}, {where}\n")
        return words

    def _build_stager(self, environ: Mapping[str, str]) -> Stager:
        """Return what brings the packed file: by the place that all launches know, as long as it is there."""
        name = self.packed.file
        shared, linked = self.launch.parent / FOLDER / name, self.launch / name
        place = str(linked if linked.exists() and not shared.exists() else shared)
        size, time_ns = self.packed.size_bytes, self.packed.mtime_ns
        source = FrozenSource(place=place, kind=Kind.file, bytes=size, mtime_ns=time_ns)
        return Stager(
            item=StageItem(name=_NAME, source=place, how=How.copy),
            source=source,
            folder=self.folder,
            settings=self.data,
            owner=self.owner,
            environ=environ,
        )

    def _leave(self, stager: Stager) -> None:
        """Give the environment free, and remove what is not to stay."""
        end_use(stager.used)
        if self.data.keep is KeptData.cache:
            evict_copies(self.folder, self.data.cache_gb * 1e9, 0, "")
        elif has_run_ended(self.owner):  # its next attempt may find it
            stager.remove()

    def _choose_start(self, stager: Stager, words: list[str], *, mounted: bool) -> tuple[str, list[str]]:
        image, environ = stager.path, stager.environ
        targets = {name: Path(path) for name, path in self.packed.folders.items()}
        unpacked = image.with_name(self.packed.key)
        try:
            if mounted:
                mount = make_private_folder(self.folder / f"{_NAME}.mount")
                show_folders_at_paths(targets, mount, environ, image)
            else:
                show_folders_at_paths(targets, unpacked, environ)
        except OSError as error:
            if not unpacked.exists():
                self._unpack(stager, trusted=False)
            where = f"started from there, as it cannot be shown at its own path ({error})"
            return where, [self._relocate(unpacked), *words[1:]]
        return "shown at its own path", words

    def _unpack(self, stager: Stager, *, trusted: bool) -> bool:
        """Unpack the file beside itself, unless that is there and as it was; return whether it was.

        Those who use it may have written to it: then it is `trusted`.
        """
        image, manifest = stager.path, stager.manifest
        unpacked, stamp = image.with_name(self.packed.key), image.with_name(_STAMP)
        with hold_lock(self.folder / f"{_NAME}.lock"):
            if unpacked.exists() and (trusted or (stamp.exists() and stamp.read_text() == _digest(unpacked))):
                return True
            part = image.with_name(_PART)
            for old in (unpacked, part):
                if old.exists():
                    remove_path(old)
            size = self.packed.unpacked_bytes
            make_room(self.folder, self.data, size, _NAME, kept=image.parent.name)
            make_private_folder(part)
            _run_unpacker(image, part)
            part.rename(unpacked)
            write_text_atomically(stamp, _digest(unpacked))
            all_bytes = self.packed.size_bytes + size
            rewrite_manifest(manifest, {**read_json_object(manifest), "bytes": all_bytes})
        return False

    def _relocate(self, unpacked: Path) -> str:
        """Have the copy name itself where it named the original; return its Python."""
        moved = {os.fsencode(path): bytes(unpacked / name) for name, path in self.packed.folders.items()}
        prefix = unpacked / next(iter(self.packed.folders))
        for file in (prefix / "pyvenv.cfg", *(prefix / "bin").iterdir()):
            part = file.with_name(f"{file.name}{_PART}.{os.getpid()}")
            if file.is_symlink():
                there = os.fsencode(file.readlink())
                if (target := _replace_folders(there, moved)) != there:
                    part.symlink_to(os.fsdecode(target))
                    part.rename(file)
            elif file.is_file():
                first, *rest = file.read_bytes().split(b"\n", 0 if file.suffix == ".cfg" else 1)
                line = _replace_folders(first, moved)
                if line != first and (first.startswith(b"#!") or file.suffix == ".cfg"):
                    part.write_bytes(b"\n".join([line, *rest]))
                    shutil.copymode(file, part)
                    part.rename(file)
        write_text_atomically(unpacked.with_name(_STAMP), _digest(unpacked))
        return str(prefix / "bin" / Path(self.packed.python).name)


def _replace_folders(text: bytes, moved: Mapping[bytes, bytes]) -> bytes:
    for old, new in moved.items():
        if new not in text:
            text = text.replace(old + b"/", new + b"/")
    return text


def _digest(folder: Path) -> str:
    """Return a hash of names, sizes, times and link targets."""
    lines = sorted(line for line, _ in list_entries(folder, set()))
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _run_unpacker(image: Path, target: Path) -> None:
    """Unpack a squashfs or tar file into a folder; raises NodeDataError."""
    if image.suffix == ".sqsh":
        words = ["unsquashfs", "-no-progress", "-force", "-dest", str(target), str(image)]
    else:
        words = ["tar", "--extract", "--gzip", "--no-same-owner", "--file", str(image), "-C", str(target)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        problem = f"this node has neither squashfuse nor {words[0]}; data.environment=tar needs none"
        raise NodeDataError(problem) from None
    if done.returncode:
        cause = Cause.scratch_full if "No space left" in done.stderr else Cause.data_damaged
        raise NodeDataError(f"{image} cannot be unpacked: {done.stderr.strip()[-_QUOTED:]}", cause)
