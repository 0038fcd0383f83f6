"""Brings one item to a node: under its lock, from another node or from the source, checked, resumed, kept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from gzip import BadGzipFile
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from hpckit.features.staging.items import (
    FrozenSource,
    How,
    Kind,
    StageItem,
    Verify,
    choose_how,
    strip_tar_suffix,
)
from hpckit.features.staging.listing import Listing, SourceError, Tree, compute_sum, list_folder
from hpckit.features.staging.place import (
    MANIFEST,
    NodeDataError,
    find_cause,
    hold_in_use,
    hold_lock,
    is_in_use,
    make_room,
    remove_copy,
    rewrite_manifest,
)
from hpckit.features.staging.remote import fetch_hub_source, fetch_object_source
from hpckit.features.staging.sources import read_source
from hpckit.features.staging.transfer import Filling, ProviderLostError, Shelf, receive_listing_and_blocks
from hpckit.model.failure import Cause
from hpckit.model.node_setup import Data
from hpckit.record.store import make_private_folder, read_json_object, write_text_atomically
from hpckit.values import dataclass, field, replace

_AT_A_TIME = 4
"""Blocks that are read, summed and written beside each other."""
_DAMAGES = (tarfile.TarError, SourceError, EOFError, ValueError, BadGzipFile, zlib.error, lzma.LZMAError)
_OF_CONTENT = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL)
_HASHED_BY_SHA256 = 50 * 10**9
"""Up to this many bytes: sha256 costs a core twice the time of crc32, and finds what someone made, too."""
_TRIES = 2
"""A copy that is found damaged is copied once more; then the node is to blame."""


class StagingStoppedError(Exception):
    """The agent ends, or the node is not wanted any more."""


@dataclass(slots=True, kw_only=True)
class Stager:
    """One item on its way to this node's `folder`."""

    item: StageItem
    source: FrozenSource
    folder: Path
    settings: Data
    owner: Mapping[str, Any]
    environ: Mapping[str, str]
    shelf: Shelf = field(default_factory=Shelf)
    key: bytes = b""
    stopped: threading.Event = field(default_factory=threading.Event)
    providers: tuple[str, ...] = ()
    used: list[int] = field(default_factory=list)
    """Open files by which copies count as in use."""
    _from_source: bool = field(default=False, init=False)

    @property
    def how(self) -> How:
        """What becomes of the source."""
        return choose_how(self.item, self.source)

    @property
    def _base(self) -> Path:
        return self.folder / f"{self.item.name}.{self.source.id}"

    @property
    def _verify(self) -> Verify:
        auto = Verify.sha256 if self.source.bytes <= _HASHED_BY_SHA256 else Verify.crc32
        return auto if self.item.verify is Verify.auto else self.item.verify

    @property
    def _lock(self) -> Path:
        return self.folder / f"{self.item.name}.lock"

    @property
    def manifest(self) -> Path:
        """The file that says what the copy is; it is there when all of the copy is."""
        return self._beside(MANIFEST)

    def _beside(self, suffix: str) -> Path:
        return self._base.with_name(f"{self._base.name}{suffix}")

    @property
    def path(self) -> Path:
        """Where the data is; of one to be mounted, the file."""
        if self.how is How.link:
            return Path(self.source.place)
        name = self.source.base_name
        if self.source.kind is Kind.hf:
            return self._base / name / "snapshots" / self.source.commit
        return self._base / (strip_tar_suffix(name) if self.how is How.extract else name)

    def stage(self) -> str:
        """Bring the item here, and return how; raises NodeDataError, StagingStoppedError."""
        if self.how is How.link:
            if not self.path.exists():
                raise NodeDataError(f"{self.path} is not there on this node (how=link)")
            return "linked"
        is_here = False
        try:
            with hold_lock(self._lock):
                kept = self._take_kept_copy()
                if not kept:
                    self._copy()
                    self.used.append(hold_in_use(self.manifest))
                is_here = self.shelf.tree is not None
        except OSError as error:
            cause = find_cause(error)
            words = f"{self.folder} is full" if cause is Cause.scratch_full else str(error)
            raise NodeDataError(f"{self.item.name}: {words}", cause) from error
        finally:
            if not is_here:
                self.shelf.fail()  # who waits for it gets it elsewhere
        return "kept" if kept else "copied" if self._from_source else "tree"

    def remove(self) -> None:
        """Remove what is here, unless another job uses it or is just bringing it."""
        with contextlib.suppress(OSError), hold_lock(self._lock, wait=False):
            if remove_copy(self.manifest):
                self._remove_partial()

    def _take_kept_copy(self) -> bool:
        """Return whether a sound copy is here; a damaged one becomes a partial one, unless it is in use."""
        manifest, place = read_json_object(self.manifest), self.manifest
        if not manifest or not self._base.is_dir():
            return False
        used_by_others = is_in_use(place)
        try:
            held = hold_in_use(place)
        except FileNotFoundError:  # removed meanwhile
            return False
        if self._is_sound(manifest, trusted=used_by_others):
            self.used.append(held)
            rewrite_manifest(place, {**manifest, "for": dict(self.owner)})
            return True
        os.close(held)
        if used_by_others:
            words = f"the copy of {self.item.name} in {self.folder} is damaged, and another job uses it"
            raise NodeDataError(words, Cause.data_damaged)
        place.unlink()
        if self.how is How.extract:
            shutil.rmtree(self._base, ignore_errors=True)
        else:
            self._base.rename(self._beside(".partial"))
        return False

    def _is_sound(self, manifest: Mapping[str, Any], *, trusted: bool) -> bool:
        """Return whether the copy is as it came; what is unpacked may be written to by those who use it."""
        if self.how is How.extract:
            with contextlib.suppress(OSError, SourceError):
                return trusted or bool(list_folder(self.path, self.path.name)[1] == manifest.get("digest"))
            return False
        # The sums that are there may be of another kind than those that this job would have made.
        if (kind := str(manifest.get("sum")).partition(":")[0]) in {*Verify}:
            self.item = replace(self.item, verify=Verify(kind))
        shutil.rmtree(self._beside(".partial"), ignore_errors=True)
        tree, sums = self._read_verified_prefix(self._base)
        if not _is_whole(tree, sums):
            return False
        self.shelf.begin(tree, sums)
        return True

    def _copy(self) -> None:
        try:
            self._fill_and_check(self._beside(".partial"))
        except Exception as error:
            if find_cause(error) is Cause.scratch_full or self._beside(".extracted").exists():
                self._remove_partial()
            raise

    def _fill_and_check(self, partial: Path) -> None:
        for other in self.folder.glob(f"{self.item.name}.*.*"):
            if other != partial and other.suffix in (".partial", ".extracted"):
                shutil.rmtree(other, ignore_errors=True)
        os.utime(make_private_folder(partial))  # leftovers are known by their age
        need = self.source.bytes * (2 if self.how is How.extract else 1)
        there = sum(path.lstat().st_blocks * 512 for path in partial.rglob("*") if path.is_file())
        make_room(self.folder, self.settings, need, self.item.name, there=there, kept=self._base.name)
        tree, sums = self._read_verified_prefix(partial)
        for _ in range(_TRIES):
            filled = self._fill(tree, sums)
            filled.finish(drop_cache=self._verify is not Verify.size)
            tree, sums = self._read_verified_prefix(partial)
            if _is_whole(tree, sums):
                self._commit(partial, filled, sums)
                return
        words = f"the copy of {self.item.name} in {self.folder} is damaged, twice"
        raise NodeDataError(words, Cause.data_damaged)

    def _remove_partial(self) -> None:
        shutil.rmtree(self._beside(".partial"), ignore_errors=True)
        shutil.rmtree(self._beside(".extracted"), ignore_errors=True)
        self._beside(".blocks").unlink(missing_ok=True)

    def _read_verified_prefix(self, base: Path) -> tuple[Tree, list[str]]:
        """Return the files of the journal, if any, and the sums of blocks up to the first damaged one."""
        try:
            first, *lines = self._beside(".blocks").read_bytes().split(b"\n")
            tree = Tree(base, Listing.from_text(first))
        except (OSError, ValueError):
            return Tree(base, Listing([])), []
        sums = [line.decode() for line in lines[:-1]][: tree.listing.blocks]
        if self._verify is Verify.size:
            return tree, sums

        def is_fine(block: int) -> bool:
            with contextlib.suppress(OSError, SourceError):
                return compute_sum(tree.read_block(block), self._verify) == sums[block]
            return False

        fine = [*takewhile(bool, self._map_blocks(is_fine, 0, len(sums)))]
        return tree, sums[: len(fine)]

    def _map_blocks(self, work: Callable[[int], Any], start: int, end: int) -> Iterator[Any]:
        """Yield what the work returns for each block, in order; a few are under way at a time."""
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                for block in range(start, end):
                    if self.stopped.is_set():
                        raise StagingStoppedError
                    waiting.append(pool.submit(work, block))
                    if len(waiting) > _AT_A_TIME:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _fill(self, tree: Tree, sums: list[str]) -> Tree:
        """Get all blocks that are missing: from other nodes, nearest first, in the end from the source."""
        filling = Filling(tree=tree, journal=self._beside(".blocks"), shelf=self.shelf)
        if tree.listing.entries:
            filling.begin(tree.listing, sums)
        for address in self.providers:
            with contextlib.suppress(ProviderLostError):
                self._fill_from_node(address, filling)
                return filling.tree
            if self.stopped.is_set():
                raise StagingStoppedError
        self._from_source = True
        try:
            self._fill_from_source(filling)
        except SourceError as error:
            raise NodeDataError(f"{self.source.place} {error}") from error
        return filling.tree

    def _fill_from_node(self, address: str, filling: Filling) -> None:
        blocks = receive_listing_and_blocks(
            address, self.key, self.source.id, self._verify, lambda: len(self.shelf.sums)
        )
        for got in blocks:
            if self.stopped.is_set():
                raise StagingStoppedError
            if isinstance(got, Listing):
                filling.begin_unless_same(got)
            else:
                filling.write(*got)

    def _fill_from_source(self, filling: Filling) -> None:
        fetch = {Kind.hf: fetch_hub_source, Kind.s3: fetch_object_source}.get(self.source.kind)
        if fetch is not None:
            partial = filling.tree.base
            fetch(self.source, partial, self.environ)
            tree = Tree(partial, read_source(partial / self.source.base_name)[1])
        else:
            tree = Tree(Path(self.source.place).parent, self._check_source())
        filling.begin_unless_same(tree.listing)
        target = filling.tree

        def copy_block(block: int) -> str:
            try:
                data = tree.read_block(block)
            except OSError as error:
                if fetch is not None:  # it is on the node already
                    raise
                name = error.filename or next(tree.listing.pieces_of_block(block))[0]
                raise SourceError(f"cannot be read: {name}: {error.strerror}") from error
            if tree.base != target.base:
                target.write_block(block, data)
            return compute_sum(data, self._verify)

        for found in self._map_blocks(copy_block, len(self.shelf.sums), tree.listing.blocks):
            filling.add(found)
        if fetch is None:
            self._check_source()

    def _check_source(self) -> Listing:
        """Return the listing of the source; raise SourceError if it is not what it was at launch."""
        found, listing = read_source(Path(self.source.place))
        if found != self.source:
            sizes = f"{self.source.bytes} bytes then, {found.bytes} now"
            raise SourceError(f"has changed since the launch ({sizes}): launch it again")
        return listing

    def _commit(self, partial: Path, tree: Tree, sums: list[str]) -> None:
        digest = ""
        shutil.rmtree(self._base, ignore_errors=True)
        if self.how is How.extract:
            packed = partial / self.source.base_name
            digest = self._extract(packed, self._beside(".extracted"))
            self._beside(".extracted").rename(self._base)
            tree.base = self._beside(f".{os.getpid()}.packed.gone")  # a later copy may be partial meanwhile
            partial.rename(tree.base)
            threading.Thread(target=self._remove_packed, args=(tree.base,), daemon=True).start()
        else:
            partial.rename(self._base)
            tree.base = self._base
        manifest = {
            "source": self.source.place,
            "bytes": self.source.bytes or tree.listing.bytes,
            "sum": f"{self._verify}:{hashlib.sha256(' '.join(sums).encode()).hexdigest()}",
            "digest": digest,
            "keep": self.settings.keep.value,
            "for": dict(self.owner),
        }
        write_text_atomically(self.manifest, json.dumps(manifest) + "\n")

    def _extract(self, packed: Path, target: Path) -> str:
        """Unpack a tar file, without what leads out of its folder; return a digest of what is there."""
        inner = target / self.path.name
        make_private_folder(inner)
        try:
            with tarfile.open(packed, tarinfo=_CheckedTarInfo) as archive:
                archive.extractall(inner, filter="data")
                while archive.fileobj is not None and (rest := archive.fileobj.read(1 << 20)):
                    if rest.strip(b"\0"):  # only at the end of its file a compressed archive is checked
                        raise tarfile.ReadError("more data follows the end of the archive")
            return list_folder(inner, inner.name)[1]
        except (*_DAMAGES, OSError) as error:
            if isinstance(error, _DAMAGES) or error.errno in _OF_CONTENT:
                raise NodeDataError(f"{self.source.place} cannot be unpacked: {error}") from error
            raise

    def _remove_packed(self, partial: Path) -> None:
        """Remove the tar file as soon as no other node is getting it from here."""
        self.shelf.end_when_unused()
        shutil.rmtree(partial, ignore_errors=True)


class _CheckedTarInfo(tarfile.TarInfo):
    """A member. `tarfile` takes a damaged header, or a part of one, for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in ("EOFHeaderError", "EmptyHeaderError"):
                raise
            raise tarfile.ReadError(f"{error} at byte {archive.offset}") from error


def _is_whole(tree: Tree, sums: list[str]) -> bool:
    return bool(tree.listing.entries) and len(sums) == tree.listing.blocks and tree.has_sizes()
