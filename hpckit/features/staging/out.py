"""Brings results from a node to the run's folder: again and again, and the rest at the end."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.features.staging.items import OutItem
from hpckit.model import messages
from hpckit.record.remove import remove_path
from hpckit.record.store import make_private_folder, read_json_object, write_text_atomically
from hpckit.run_features import NodeContext

_SHOWN = 5
_PIECE = 8 << 20
_TICK_S = 0.5
_LEAVE_S = 10.0
"""How long an agent that ends still copies."""


class OutCopier:
    """What goes out from one node, in a thread; below the node's name, so that no two write one file."""

    def __init__(self, items: Sequence[OutItem], context: NodeContext) -> None:
        self.items, self.context = items, context
        self._folder: Path | None = None
        self._copying: threading.Thread | None = None
        self._stopped, self._rest, self._final = threading.Event(), threading.Event(), False
        self._done, self._told = dict[str, dict[str, tuple[int, int]]](), dict[str, str]()
        self.complete = True
        """Whether all that was there at the end is out."""

    def start(self, folder: Path) -> None:
        """Begin to copy what appears below `folder`, by the items' names."""
        if not self.items or self._folder is not None:
            return
        self._folder, self.complete = folder, False
        for item in self.items:
            make_private_folder(self._source(item))
        self._copying = threading.Thread(target=self._copy_now_and_then, name="stage out", daemon=True)
        self._copying.start()

    def _source(self, item: OutItem) -> Path:
        assert self._folder is not None, "started"  # noqa: S101
        return self._folder / (item.source or item.name)

    def get_variables(self) -> Mapping[str, str]:
        """Return the variables by which ranks find the folders that go out."""
        if self._folder is None:
            return {}
        return {f"HPCKIT_OUT_{item.name.upper()}": str(self._source(item)) for item in self.items}

    def copy_rest(self, *, final: bool) -> None:
        """Copy what is left now; the final time it is told when all is there, also if nothing goes out."""
        if self._folder is not None and not self._stopped.is_set():
            self._final = self._final or final
            self._rest.set()
        elif final:
            self._tell_end()

    def _tell_end(self) -> None:
        self.context.tell(messages.StagedOut(name="", bytes=0, seconds=0.0, last=True))

    def stop(self) -> None:
        """Copy what is new, as without a supervisor nobody has asked for it, and no more then."""
        self._stopped.set()
        self._rest.set()
        if self._copying is not None:
            self._copying.join(_LEAVE_S)

    def _copy_now_and_then(self) -> None:
        due = {item.name: time.monotonic() + item.every_s for item in self.items}
        stopped = False
        while not stopped:
            rest, final, stopped = self._rest.wait(_TICK_S), self._final, self._stopped.is_set()
            self._rest.clear()
            for item in self.items:
                if rest or time.monotonic() >= due[item.name]:
                    self._copy_new_files(item)
                    due[item.name] = time.monotonic() + item.every_s
            if rest and final:
                self._tell_end()
        self.complete = not any(self._told.values())

    def _copy_new_files(self, item: OutItem) -> None:
        source, began, total = self._source(item), time.monotonic(), 0
        run = self.context.launch.paths.run(self.context.index).folder
        target = run / (item.to or f"out/{item.name}") / self.context.node
        done, out, problems = self._done.get(item.name, {}), dict[str, tuple[int, int]](), list[str]()
        for here, _, names in os.walk(source, onerror=lambda error: problems.append(str(error))):
            for name in names:
                file = Path(here, name)
                path = str(file.relative_to(source))
                try:
                    found = file.lstat()
                    mark = found.st_size, found.st_mtime_ns
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    if done.get(path) != mark:
                        self._copy_file(file, target, path)
                        total += found.st_size
                    out[path] = mark
                except OSError as error:
                    if not isinstance(error, FileNotFoundError) or file.exists():  # else renamed meanwhile
                        problems.append(f"{path}: {error.strerror}")
        try:
            _add_to_manifest(target, {path: size for path, (size, _) in out.items()})
        except OSError as error:
            problems.append(str(error))
        words = f"data.out.{item.name} of {self.context.node}: {'; '.join(problems[:_SHOWN])}; "
        words = f"{words}what is not out stays in {source}" if problems else ""
        if words not in ("", self._told.get(item.name)):
            self.context.tell(messages.Warn(message=words))
        self._done[item.name], self._told[item.name] = out, words
        if total:
            took = round(time.monotonic() - began, 3)
            self.context.tell(messages.StagedOut(name=item.name, bytes=total, seconds=took))

    def _copy_file(self, file: Path, target: Path, path: str) -> None:
        """Copy a file to its path below `target`; a folder that is a file now, or the reverse, gives way."""
        part, place = target.with_name(f".{target.name}.part"), target / path
        make_private_folder(target)
        try:
            with file.open("rb") as reading, part.open("wb") as writing:
                shutil.copyfileobj(reading, writing, _PIECE)
                writing.flush()
                os.fsync(writing.fileno())
            for old in (place, *place.parents[: path.count("/")]):
                if old.exists() and old.is_dir() is (old == place):
                    remove_path(old)
            make_private_folder(place.parent)
            part.rename(place)
        finally:
            part.unlink(missing_ok=True)


def _add_to_manifest(target: Path, files: Mapping[str, int]) -> None:
    manifest = target.with_name(f"{target.name}.manifest.json")
    listed = read_json_object(manifest).get("files", {})
    if not files.items() <= listed.items():
        earlier = {path: listed[path] for path in listed if (target / path).is_file()}
        text = json.dumps({"v": 1, "node": target.name, "files": earlier | dict(files)})
        write_text_atomically(manifest, text + "\n")
