"""A node of a test: a folder, a server of blocks, and what stages one source to it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpckit.features.staging.items import FrozenSource, StageItem
from hpckit.features.staging.listing import Tree
from hpckit.features.staging.place import NodeDataError
from hpckit.features.staging.sources import read_source
from hpckit.features.staging.stager import Stager, StagingStoppedError
from hpckit.features.staging.transfer import BlockServer, Shelf, derive_key
from hpckit.model.node_setup import Data, KeptData

SECRET = "ab" * 32


class WatchedShelf(Shelf):
    """Calls back when a copy begins, and after each block."""

    on_begin: Callable[[], object] = staticmethod(lambda: None)
    on_block: Callable[[int], object] = staticmethod(lambda _: None)

    def begin(self, tree: Tree, sums: list[str]) -> None:
        """Begin, and tell."""
        super().begin(tree, sums)
        self.on_begin()

    def add(self, found: str) -> None:
        """Add, and tell."""
        super().add(found)
        self.on_block(len(self.sums))


class Node:
    """One node, with the data of one source."""

    def __init__(
        self, folder: Path, source: Path | FrozenSource, item: StageItem | None = None, **settings: Any
    ) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self.source = source if isinstance(source, FrozenSource) else read_source(source)[0]
        self.item = item or StageItem(name="big", source=self.source.place)
        self.shelf = WatchedShelf()
        self.server = BlockServer(derive_key(SECRET))
        self.server.shelves = {self.source.id: self.shelf}
        self.address = f"127.0.0.1:{self.server.port}"
        self.stopped = threading.Event()
        self.used: list[int] = []
        self.folder = folder
        self.settings = Data(**{"keep": KeptData.cache, "margin_gb": 0.0, **settings})
        self.how = ""
        self.environ = dict(os.environ)

    def stager(self, *providers: str) -> Stager:
        """Return what stages to this node."""
        return Stager(
            item=self.item,
            source=self.source,
            folder=self.folder,
            settings=self.settings,
            owner={"launch": "/launch", "run": 0},
            shelf=self.shelf,
            key=derive_key(SECRET),
            environ=self.environ,
            stopped=self.stopped,
            providers=providers,
            used=self.used,
        )

    def stage(self, *providers: str) -> Path:
        """Stage from these nodes, or from the source; return where the data is."""
        stager = self.stager(*providers)
        self.how = stager.stage()
        return stager.path

    def start(self, *providers: str) -> threading.Thread:
        """Stage in a thread."""

        def stage() -> None:
            with contextlib.suppress(StagingStoppedError, NodeDataError):
                self.stage(*providers)

        thread = threading.Thread(target=stage, daemon=True)
        thread.start()
        return thread

    def stop_at(self, blocks: int) -> Callable[[], None]:
        """Return what waits until so many blocks are here."""

        def wait() -> None:
            with self.shelf.news:
                assert self.shelf.news.wait_for(lambda: len(self.shelf.sums) >= blocks, 30)

        return wait

    def close(self) -> None:
        """End as an agent does."""
        self.stopped.set()
        self.server.close()
        for file in self.used:
            os.close(file)
        self.used.clear()


def write_random(path: Path, size: int) -> Path:
    """Write a file of random bytes."""
    path.write_bytes(os.urandom(size))
    return path
