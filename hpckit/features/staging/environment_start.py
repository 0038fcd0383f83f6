"""Brings the packed environment of a launch to a node, and starts the agent from there.

Where user namespaces are allowed, the agent and its ranks see it at its own path, so that programs,
shebangs and editable installs work as they do elsewhere. Else they start the Python of an unpacked copy.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import subprocess  # noqa: TID251  # the programs that unpack
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpckit.errors import FrozenFolderError, RunError
from hpckit.features.staging.environment import FOLDER, Packed
from hpckit.features.staging.place import NodeDataError, check_room
from hpckit.features.staging.private_mounts import can_mount_images, show_folders_at_paths
from hpckit.model.node_setup import Data, KeptData, StagedData
from hpckit.model.plain import to_plain
from hpckit.record.remove import remove_path
from hpckit.record.store import make_private_folder
from hpckit.runtime.environ import STAGED_ENVIRONMENT, find_node_name
from hpckit.values import dataclass

_GB = 1e9
_QUOTED = 400
_ELSEWHERE = (
    "cluster.node_scratch and data.dir name folders on the node's own disk; data.margin_gb stays free"
)
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """A launch's environment on this node; `folder` is private, on the node's own disk."""

    packed: Packed
    source: Path
    folder: Path
    data: Data

    @property
    def image(self) -> Path:
        """The copy of the packed file, if it is mounted."""
        return self.folder / self.packed.file

    @property
    def unpacked(self) -> Path:
        """The folder that has what is packed."""
        return self.folder / self.packed.key

    @property
    def mounted(self) -> bool:
        """Whether this node mounts the file, instead of unpacking it."""
        return self.image.suffix == ".sqsh" and can_mount_images()

    def start(self, words: Sequence[str], environ: dict[str, str]) -> list[str]:
        """Return the words that start the agent from this node's environment; raises RunError.

        `words` are those that start it from the shared one. Its variables, `environ`, say what was done.
        """
        begin = time.monotonic()
        try:
            kept = self._bring_and_hold()
            seconds = time.monotonic() - begin
            where, words = self._choose_start(list(words))
        except NodeDataError as error:
            raise RunError(f"node {find_node_name()}: {error}", hint=_ELSEWHERE) from error
        except OSError as error:
            raise RunError(
                f"node {find_node_name()} cannot bring {self.source} to {self.folder}: "
                f"{error.strerror or error}",
                hint=_ELSEWHERE,
            ) from error
        staged = StagedData(
            node=find_node_name(),
            name="environment",
            bytes=self.packed.size_bytes,
            seconds=round(seconds, 3),
            how="kept" if kept else "mounted" if self.mounted else "copied",
        )
        environ[STAGED_ENVIRONMENT] = json.dumps(to_plain(staged))
        sys.stderr.write(f"hpckit: environment {self.packed.key} on {staged.node}: {staged.how}, {where}\n")
        return words

    def _choose_start(self, words: list[str]) -> tuple[str, list[str]]:
        targets = {name: Path(path) for name, path in self.packed.folders.items()}
        source = self.unpacked
        try:
            if self.mounted:
                source = make_private_folder(self.folder / f"{self.packed.key}.mount")
                show_folders_at_paths(targets, source, self.image)
                return "shown at its own path", words
            show_folders_at_paths(targets, source)
        except OSError as error:
            if not self.unpacked.exists():
                self._unpack()
            python = self._prepare_relocated_python()
            return f"started from there, as it cannot be shown at its own path ({error})", [
                str(python),
                *words[1:],
            ]
        return "shown at its own path", words

    def _bring_and_hold(self) -> bool:
        """Bring the environment here, unless it is, and hold it to this process's end.

        Returns whether it was here. Of several jobs on a node one brings it, and the last one removes it.
        """
        make_private_folder(self.folder)
        self._remove_unheld()
        lock = os.open(self.folder / f"{self.packed.key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        wanted, kept = (self.image if self.mounted else self.unpacked), True
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if self._is_here(wanted):
                break
            try:  # without waiting: those that have it keep their locks for long
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_S)
                continue
            if not self._is_here(wanted):
                kept = False
                size = self.packed.size_bytes if self.mounted else self.packed.unpacked_bytes
                check_room(self.folder, size, int(self.data.margin_gb * _GB), "environment")
                self._copy() if self.mounted else self._unpack()
        os.utime(lock)
        if self.data.keep is KeptData.job:
            atexit.register(self._remove_if_last, lock)
        return kept

    def _is_here(self, wanted: Path) -> bool:
        """Return whether it is here, a file with all of its bytes."""
        return wanted.exists() and (not self.mounted or wanted.stat().st_size == self.packed.size_bytes)

    def _copy(self) -> None:
        part = self.image.with_name(f".{self.image.name}.part")
        self._check_source()
        shutil.copyfile(self.source, part)
        if part.stat().st_size != self.packed.size_bytes:
            raise OSError(f"only {part.stat().st_size} of {self.packed.size_bytes} bytes came")
        part.rename(self.image)

    def _check_source(self) -> None:
        try:
            size = self.source.stat().st_size
        except OSError as error:
            raise FrozenFolderError(
                f"the packed environment {self.source} cannot be read: {error.strerror}",
                hint="launch again, which packs it again",
            ) from error
        if size != self.packed.size_bytes:
            raise RunError(
                f"{self.source} has {size} bytes, and {self.packed.size_bytes} when it was packed",
                hint=f"remove it and launch again; it is one of {FOLDER} in output_dir",
            )

    def _unpack(self) -> None:
        self._check_source()
        part = self.folder / f".{self.packed.key}.part"
        if part.exists():
            remove_path(part)
        part.mkdir(mode=0o700)
        if self.source.suffix == ".sqsh":
            words = ["unsquashfs", "-no-progress", "-force", "-dest", str(part), str(self.source)]
        else:
            words = ["tar", "--extract", "--gzip", "--no-same-owner", "--file", str(self.source)]
            words += ["-C", str(part)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        except FileNotFoundError:
            raise RunError(
                f"node {find_node_name()} has neither squashfuse nor {words[0]}",
                hint="install one of them there (squashfuse, squashfs-tools), or data.environment=tar",
            ) from None
        if done.returncode:
            raise RunError(
                f"node {find_node_name()} cannot unpack {self.source}: {done.stderr.strip()[-_QUOTED:]}",
                hint="is the node's disk full?",
            )
        part.rename(self.unpacked)

    def _prepare_relocated_python(self) -> Path:
        """Return the Python of the unpacked copy; of a virtual environment one with its own settings."""
        names = list(self.packed.folders)
        prefix = self.unpacked / names[0]
        program = Path(self.packed.python).name
        settings = prefix / "pyvenv.cfg"
        if not settings.exists():
            return prefix / "bin" / program
        start = self.folder / f"{self.packed.key}.start"
        if start.exists():
            return start / "bin" / program
        part = start.with_name(f".{start.name}.{os.getpid()}")
        (part / "bin").mkdir(parents=True, mode=0o700)
        home, lines = "", []
        for line in settings.read_text("utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                home = value.strip()
                for name in names[1:]:  # the base is packed, too
                    home = home.replace(self.packed.folders[name], str(self.unpacked / name), 1)
                lines.append(f"home = {home}")
            else:
                lines.append(line)
        (part / "pyvenv.cfg").write_text("\n".join(lines) + "\n", "utf-8")
        (part / "lib").symlink_to(prefix / "lib")
        version = next((prefix / "lib").glob("python*")).name
        for name in {program, "python", "python3", version}:
            (part / "bin" / name).symlink_to(Path(home) / version)
        _copy_scripts(prefix / "bin", part / "bin", self.packed, start / "bin")
        part.rename(start)
        return start / "bin" / program

    def _remove_if_last(self, lock: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self._list_parts(self.packed.key):
                remove_path(path)

    def _list_parts(self, key: str) -> Iterator[Path]:
        for path in self.folder.iterdir():
            if key in path.name and path.suffix not in {".lock", ".mount"}:
                yield path

    def _remove_unheld(self) -> None:
        """Remove what no process holds: with keep=job all of it, else the longest unused beyond its limit."""
        locks = sorted(self.folder.glob("*.lock"), key=lambda path: path.stat().st_mtime)
        limit = self.data.cache_gb * _GB if self.data.keep is KeptData.cache else 0.0
        sizes = {path.stem: sum(_count_bytes(part) for part in self._list_parts(path.stem)) for path in locks}
        for path in locks:
            if path.stem == self.packed.key or sum(sizes.values()) <= limit:
                continue
            with path.open("rb") as lock, contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for part in self._list_parts(path.stem):
                    remove_path(part)
                sizes[path.stem] = 0


def _count_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*"))


def _copy_scripts(source: Path, target: Path, packed: Packed, final: Path) -> None:
    """Copy scripts that name the environment's own Python; they name the relocated one then."""
    own = f"#!{next(iter(packed.folders.values()))}/bin/".encode()
    for file in source.iterdir():
        if file.is_symlink() or not file.is_file() or (target / file.name).exists():
            continue
        with file.open("rb") as opened:
            text = opened.read() if opened.read(len(own)) == own else b""
        if text:
            copy = target / file.name
            copy.write_bytes(f"#!{final}/".encode() + text)
            copy.chmod(0o700)
