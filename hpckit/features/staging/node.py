"""What staging does in the agent of a node: all in threads, so that the agent's signs of life go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import FrozenFolderError
from hpckit.features.staging.items import FrozenSource, How, Kind, Needed, StageItem, read_items
from hpckit.features.staging.mounting import mount_squashfs, unmount
from hpckit.features.staging.out import OutCopier
from hpckit.features.staging.place import (
    JOB,
    OWNER,
    choose_folder,
    claim_for_node,
    end_use,
    evict_copies,
    find_cause,
    has_run_ended,
    remove_leftovers,
)
from hpckit.features.staging.stager import Stager, StagingStoppedError
from hpckit.features.staging.transfer import BlockServer, Shelf, derive_key
from hpckit.model import messages
from hpckit.model.node_setup import KeptData, StagedData
from hpckit.model.plain import from_plain
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import make_private_folder, read_json, write_text_atomically
from hpckit.run_features import NodeContext
from hpckit.runtime.environ import STAGED_ENVIRONMENT

_LEAVE_S = 2.0


class NodeData:
    """The data of one run on one node: brought here, shown to its ranks, and removed when all is over."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.settings, self.items, outs = read_items(context.config)
        self.sources = read_frozen_sources(context.launch.paths)
        self.shelves = {self._source(item).id: Shelf() for item in self.items}
        self.server = BlockServer(derive_key(context.secret)) if context.serves and self.items else None
        if self.server is not None:
            self.server.shelves = self.shelves
        self.port = 0 if self.server is None else self.server.port
        self.out = OutCopier(outs, context)
        self._stopped, self._used = threading.Event(), list[int]()
        self._staged = dict[str, StagedData]()
        if (environment := context.environ.get(STAGED_ENVIRONMENT)) is not None:
            self._staged["environment"] = from_plain(StagedData, json.loads(environment))
        self._mounts = dict[Path, subprocess.Popen[bytes] | None]()
        self._folder: Path | None = None
        self._working: threading.Thread | None = None

    def _source(self, item: StageItem) -> FrozenSource:
        return self.sources[item.source]

    def follow(self, order: messages.Prepare | messages.BringOut) -> None:
        """Begin to bring all here that is not, or out what is left; what comes of it is told."""
        if isinstance(order, messages.BringOut):
            self.out.copy_rest(final=order.final)
        elif order.stop:
            self._stopped.set()
            if self.server is not None:
                self.server.close()
        elif self._working is None or not self._working.is_alive():
            self._stopped.clear()
            self._working = threading.Thread(target=self._prepare, args=(order,), name="staging", daemon=True)
            self._working.start()

    def _prepare(self, order: messages.Prepare) -> None:
        try:
            self._open_folder()
            for item in self.items:
                if item.needed is Needed.start:
                    self._stage(item, order.providers)
            self.context.tell(messages.Prepared(staged=tuple(self._staged.values()), complete=True))
        except Exception as error:  # noqa: BLE001  # what a thread does not tell is waited for without end
            if not isinstance(error, StagingStoppedError):
                words = str(error) or repr(error)
                self.context.tell(messages.Prepared(cause=find_cause(error), problem=words))
            return
        self.out.start(self._job_folder / "out")
        for item in self.items:
            if item.needed is Needed.background and item.name not in self._staged:
                self._stage_in_background(item, order.providers)

    def _stage_in_background(self, item: StageItem, providers: tuple[str, ...]) -> None:
        try:
            self._stage(item, providers)
            self.context.tell(messages.Prepared(staged=(self._staged[item.name],)))
        except StagingStoppedError:
            pass
        except Exception as error:  # noqa: BLE001  # as above
            (self._job_folder / f"{item.name}.failed").write_text(str(error))
            words = f"data {item.name} did not come to {self.context.node}: {error}"
            self.context.tell(messages.Warn(message=words))

    def _open_folder(self) -> Path:
        if self._folder is None:
            needed = sum(self._source(item).bytes for item in self.items if item.how is not How.link)
            candidates = self.context.settings.cluster.node_scratch
            folder = choose_folder(self.settings.dir, candidates, self.context.environ, needed)
            self._folder = claim_for_node(folder, self.context.node)
            environ = self.context.environ
            remove_leftovers(self._folder, has_run_ended, lambda mount: unmount(mount, environ))
            make_private_folder(self._job_folder)
            write_text_atomically(self._job_folder / OWNER, json.dumps(self._owner))
        return self._folder

    @property
    def _owner(self) -> dict[str, Any]:
        return {"launch": str(self.context.launch.folder), "run": self.context.index}

    @property
    def _job_folder(self) -> Path:
        assert self._folder is not None, "opened first"  # noqa: S101
        return self._folder / f"{JOB}{self.context.launch.id}-{self.context.index}"

    def _stage(self, item: StageItem, providers: tuple[str, ...]) -> None:
        if item.name in self._staged:
            return
        began, source, node = time.monotonic(), self._source(item), self.context.node
        stager = self._build_stager(item, providers)
        how = stager.stage()
        path = stager.path
        if stager.how is How.mount:
            target = self._find_path(item)
            if not os.path.ismount(target):
                self._mounts[target] = mount_squashfs(path, target, self.context.environ)
            path, how = target, "mounted" if how != "kept" else how
        if source.kind is Kind.hf:
            hub = make_private_folder(self._job_folder / "hf" / "hub")
            _link(hub / source.base_name, path.parents[1])
        (self._job_folder / f"{item.name}.failed").unlink(missing_ok=True)
        _link(self._job_folder / item.name, path)
        tree = stager.shelf.tree
        size = source.bytes or (0 if tree is None else tree.listing.bytes)
        seconds = round(time.monotonic() - began, 3)
        staged = StagedData(node=node, name=item.name, bytes=size, seconds=seconds, how=how)
        self._staged[item.name] = staged

    def _build_stager(self, item: StageItem, providers: tuple[str, ...] = ()) -> Stager:
        source = self._source(item)
        return Stager(
            item=item,
            source=source,
            folder=self._open_folder(),
            settings=self.settings,
            owner=self._owner,
            shelf=self.shelves[source.id],
            key=derive_key(self.context.secret),
            environ=self.context.environ,
            stopped=self._stopped,
            providers=providers,
            used=self._used,
        )

    def _find_path(self, item: StageItem) -> Path:
        stager = self._build_stager(item)
        return self._job_folder / "mnt" / item.name if stager.how is How.mount else stager.path

    def get_variables(self) -> Mapping[str, str]:
        """Return the variables by which ranks find their data; none before it is known where it is."""
        if self._folder is None:
            return {}
        found = {"HPCKIT_DATA": str(self._job_folder), **self.out.get_variables()}
        found |= {f"HPCKIT_DATA_{item.name.upper()}": str(self._find_path(item)) for item in self.items}
        if any(self._source(item).kind is Kind.hf for item in self.items):
            found |= {"HF_HOME": str(self._job_folder / "hf"), "HF_HUB_OFFLINE": "1"}
        return found

    def close(self, *, final: bool) -> None:
        """Serve no more and give the data free; remove it if the run has ended for good."""
        self._stopped.set()
        self.out.stop()
        if self.server is not None:
            self.server.close()
        for target, process in self._mounts.items():
            unmount(target, self.context.environ)
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                process.kill()
        end_use(self._used)
        if not self.out.complete:  # no later agent removes it
            with contextlib.suppress(OSError):
                write_text_atomically(self._job_folder / OWNER, json.dumps({**self._owner, "results": True}))
        elif final and self._folder is not None:
            shutil.rmtree(self._job_folder, ignore_errors=True)
        if final and self._folder is not None:
            if self.settings.keep is KeptData.cache:
                evict_copies(self._folder, self.settings.cache_gb * 1e9, 0, "")
                return
            if self._working is not None:
                self._working.join(_LEAVE_S)
            for item in self.items:
                self._build_stager(item).remove()


def read_frozen_sources(paths: LaunchPaths) -> dict[str, FrozenSource]:
    """Return the sources of a launch by their texts, as they were; raises FrozenFolderError."""
    try:
        record = read_json(paths.folder / "stage.json")
        return {text: from_plain(FrozenSource, source) for text, source in record["sources"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        words = f"{paths.folder}/stage.json cannot be read: {error}"
        raise FrozenFolderError(words, hint="launch it again") from error


def _link(place: Path, target: Path) -> None:
    """Let `place` lead to `target`, from one moment to the next."""
    part = place.with_name(f".{place.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.rename(place)
