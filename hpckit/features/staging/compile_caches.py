"""Keeps the caches of torch's compiler, Triton and CUDA on the node's disk, and carries them to the next one.

Without that, each new node and each requeued job compiles again what the run has compiled before. The node
of rank 0 saves the caches in the run's folder, whenever they have grown and then rested, and at its end; a
node without any begins with those. Only the run's owner can write there, as compilers run what is cached.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpckit.features.staging.place import OWNER
from hpckit.record.ownership import explain_unsafe_ownership, read_path_status
from hpckit.record.store import PRIVATE_FILE, make_private_folder, write_text_atomically
from hpckit.runtime.left_behind import die_with_parent
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass

_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda"}
_LOOK_S = 20.0
_RESTED_S = 2.0
"""A younger file may not be complete."""
_MOST_BYTES = 10**9
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_Entry = tuple[Path, int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCaches:
    """A run's caches on this node, and the file in the run's folder that carries them."""

    folder: Path
    carried: Path
    owner: Mapping[str, Any]

    def begin(self, environ: dict[str, str], settings: Mapping[str, str], *, saves: bool) -> None:
        """Set the variables of caches that nobody has set; begin with the caches that the run has.

        `settings` are the run's own variables. With `saves` this node carries its caches on. Here they
        go when this process ends.
        """
        names = [name for name in _VARIABLES if name not in settings and name not in environ]
        if not names:
            return
        if not self.folder.exists():
            self._fetch()
        for name in names:
            environ[name] = str(make_private_folder(self.folder / _VARIABLES[name]))
        # Handlers run in reverse order: this one after the last save.
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        if saves:
            known = {path: when for path, _, when in self._list_files()}
            atexit.register(self._save, known)
            self._save_when_grown(known)

    def _fetch(self) -> None:
        """Unpack the carried caches; what cannot be read is compiled again."""
        part = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        begin = time.monotonic()
        make_private_folder(part)
        with contextlib.suppress(OSError, tarfile.TarError, EOFError, ValueError, zlib.error):
            if explain_unsafe_ownership(read_path_status(self.carried), os.geteuid()) is None:
                with tarfile.open(self.carried) as packed:
                    # Python 3.11.3 and older have no filters; the file is the user's own.
                    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    packed.extractall(part, **safely)  # noqa: S202
                size = self.carried.stat().st_size / 1e6
                seconds = time.monotonic() - begin
                sys.stderr.write(f"hpckit: compile caches: {size:.1f} MB came in {seconds:.1f} s\n")
        write_text_atomically(part / OWNER, json.dumps(self.owner))
        part.rename(self.folder)

    def _list_files(self) -> Iterator[_Entry]:
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                ours = path.suffix == ".lock" or path.name == OWNER
                if path.is_file() and not path.is_symlink() and not ours:
                    seen = path.stat()
                    yield path, seen.st_size, seen.st_mtime

    def _save(self, known: dict[Path, float]) -> None:
        """Write the carried caches, if there is something new; the newest files first, up to a limit."""
        old = time.time() - _RESTED_S
        found = sorted((entry for entry in self._list_files() if entry[2] < old), key=lambda entry: -entry[2])
        if all(known.get(path) == when for path, _, when in found):
            return
        part = self.carried.with_name(f".{self.carried.name}.{os.getpid()}")
        total = 0
        with contextlib.suppress(OSError):
            try:
                with os.fdopen(os.open(part, _NEW, PRIVATE_FILE), "wb") as file:
                    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed:
                        for path, size, _ in found:
                            total += size
                            if total > _MOST_BYTES:
                                break
                            packed.add(path, path.relative_to(self.folder), recursive=False)
                    file.flush()
                    os.fsync(file.fileno())
                part.rename(self.carried)
                known.update((path, when) for path, _, when in found)
            finally:
                part.unlink(missing_ok=True)

    def _save_when_grown(self, known: dict[Path, float]) -> None:
        """Save from a process of its own, which ends with this one."""
        if os.fork():
            return
        try:
            for number in (*NOTICES, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            die_with_parent()
            before = dict(known)
            while True:
                time.sleep(_LOOK_S)
                now = {path: when for path, _, when in self._list_files()}
                if now == before:
                    self._save(known)
                before = now
        finally:
            os._exit(0)
