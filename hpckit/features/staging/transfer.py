"""Blocks from node to node: who gets them from whom; each serves what it has, also while it still receives.

Both sides prove that they know the attempt's secret. The sum of each block is signed, so that with
sha256 no block can be changed on its way.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpckit.features.staging.items import Verify
from hpckit.features.staging.listing import BLOCK, Listing, SourceError, Tree, compute_sum
from hpckit.record.store import write_chunks
from hpckit.runtime.channel.listen import open_listening_socket
from hpckit.values import dataclass, field

_HEAD = struct.Struct("!qI32s32s")
"""Of a frame: its number, its bytes, the sum and the signature. Frame 0 is the listing, n + 1 block n."""
_BEAT = -1
_BEAT_S = 2.0
_CONNECT_S = 5.0
_SILENT_S = 15.0
"""How long a node may say nothing, not even that it waits itself."""
_SLOW_S = 60.0
"""How long a node may take to receive one block."""
_MOST_LISTING = 1 << 30
_MOST_CALLERS = 16
_CHILDREN = 2
_FILE_SYSTEM, _LINK, _NODE = 4e9, 2.5e9, 2e9
"""Assumed bytes per second: of a shared file system in all, a node's link, and what a node writes."""
_LEVEL_S = 0.001
"""What a level of the tree adds before its first byte."""


class ProviderLostError(Exception):
    """A node that gave blocks is gone, does not have them, or has damaged ones."""


@dataclass(slots=True, kw_only=True)
class Shelf:
    """The blocks of one item that a node has: the first `len(sums)` ones of `tree`."""

    tree: Tree | None = None
    sums: list[str] = field(default_factory=list)
    failed: bool = False
    callers: int = 0
    news: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, tree: Tree, sums: list[str]) -> None:
        """Serve from these files, which have the blocks with these sums."""
        with self.news:
            self.tree, self.sums, self.failed = tree, sums, False
            self.news.notify_all()

    def add(self, found: str) -> None:
        """Take the sum of the next block, which is written."""
        with self.news:
            self.sums.append(found)
            self.news.notify_all()

    def fail(self) -> None:
        """Tell who waits that nothing more comes from here."""
        with self.news:
            self.failed = True
            self.news.notify_all()

    @contextlib.contextmanager
    def count_caller(self) -> Iterator[None]:
        """Count someone who is being served."""
        with self.news:
            self.callers += 1
        try:
            yield
        finally:
            with self.news:
                self.callers -= 1
                self.news.notify_all()

    def end_when_unused(self) -> None:
        """Wait until nobody is being served, and serve no more."""
        with self.news:
            self.news.wait_for(lambda: not self.callers)
        self.fail()

    def wait_for_frame(self, frame: int) -> bool | None:
        """Return whether a frame is there, after a while at most; None if it never will be."""

        def is_there() -> bool:
            return self.tree is not None and frame <= len(self.sums)

        with self.news:
            self.news.wait_for(lambda: self.failed or is_there(), _BEAT_S)
            return None if self.failed else is_there()


@dataclass(slots=True, kw_only=True)
class Filling:
    """A partial copy that grows on a shelf, with a line for each block in a journal: a later one goes on."""

    tree: Tree
    journal: Path
    shelf: Shelf

    def begin(self, listing: Listing, sums: list[str]) -> None:
        """Go on from these blocks."""
        self.tree = Tree(self.tree.base, listing)
        self.tree.make_frame()
        lines = [listing.text, *(found.encode() for found in sums)]
        write_chunks(self.journal, (line + b"\n" for line in lines), lasting=False)
        self.shelf.begin(self.tree, sums)

    def begin_unless_same(self, listing: Listing) -> None:
        """Go on with the blocks that are here, if they are of the same files; else begin anew."""
        if self.tree.listing.text != listing.text:
            self.begin(listing, [])

    def write(self, block: int, data: bytes, found: str) -> None:
        """Write the next block."""
        self.tree.write_block(block, data)
        self.add(found)

    def add(self, found: str) -> None:
        """Note the sum of the next block, which is written."""
        with self.journal.open("a") as lines:
            lines.write(f"{found}\n")
        self.shelf.add(found)


def derive_key(secret: str) -> bytes:
    """Return the key for data, of an attempt's secret."""
    return hmac.digest(bytes.fromhex(secret), b"staging", "sha256")


def _sign(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _encode_sum(found: str) -> bytes:
    return found.encode() if len(found) <= 32 else bytes.fromhex(found)  # noqa: PLR2004  # crc32, none, or sha256


class BlockServer:
    """Serves the shelves of this node to other agents of its attempt, each caller in a thread."""

    def __init__(self, key: bytes) -> None:
        self.shelves: dict[str, Shelf] = {}
        self._key, self._socket = key, open_listening_socket()
        self._room = threading.Semaphore(_MOST_CALLERS)
        self._open = True
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept_callers, name="blocks", daemon=True).start()

    def close(self) -> None:
        """Serve no more: who waits goes on with another node."""
        self._open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for shelf in self.shelves.values():
            shelf.fail()

    def _accept_callers(self) -> None:
        while self._open:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                caller.close()
                continue
            threading.Thread(target=self._attend, args=(caller,), name="block", daemon=True).start()

    def _attend(self, caller: socket.socket) -> None:
        try:
            with caller, contextlib.suppress(OSError, ValueError, KeyError, ProviderLostError, SourceError):
                caller.settimeout(_SILENT_S)
                session, asked = self._authenticate(caller)
                caller.settimeout(_SLOW_S)
                shelf = self.shelves[str(asked["item"])]
                with shelf.count_caller():
                    self._serve(caller, session, shelf, int(asked["from"]))
        finally:
            self._room.release()

    def _authenticate(self, caller: socket.socket) -> tuple[bytes, dict[str, Any]]:
        ours = secrets.token_bytes(32)
        caller.sendall(ours)
        theirs, proof = _receive(caller, 32), _receive(caller, 32)
        if not hmac.compare_digest(proof, _sign(self._key, b"child", ours, theirs)):
            raise ProviderLostError("a caller does not know the secret")
        session = _sign(self._key, b"session", ours, theirs)
        caller.sendall(_sign(self._key, b"parent", theirs, ours))
        size = int.from_bytes(_receive(caller, 2))
        text, mac = _receive(caller, size), _receive(caller, 32)
        if not hmac.compare_digest(mac, _sign(session, text)):
            raise ProviderLostError("a request is forged")
        asked: dict[str, Any] = json.loads(text)
        return session, asked

    def _serve(self, caller: socket.socket, session: bytes, shelf: Shelf, frame: int) -> None:
        while self._open:
            there = shelf.wait_for_frame(frame)
            if there is None:
                return
            if not there:
                caller.sendall(_build_head(session, _BEAT, 0, b""))
                continue
            tree = shelf.tree
            assert tree is not None, "the frame is there"  # noqa: S101
            if frame > tree.listing.blocks:
                return
            if frame == 0:
                data: bytes | bytearray = tree.listing.text
                found = hashlib.sha256(data).digest()
            else:
                found = _encode_sum(shelf.sums[frame - 1])
                try:
                    data = tree.read_block(frame - 1)
                except FileNotFoundError:  # it has just got its final name
                    data = tree.read_block(frame - 1)
            caller.sendall(_build_head(session, frame, len(data), found))
            caller.sendall(data)
            frame += 1


def _build_head(session: bytes, frame: int, size: int, found: bytes) -> bytes:
    padded = found.ljust(32, b"\0")
    return _HEAD.pack(frame, size, padded, _sign(session, b"%d %d" % (frame, size), padded))


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    missing = memoryview(data)
    while missing:
        got = connection.recv_into(missing)
        if not got:
            raise ProviderLostError("the connection ended")
        missing = missing[got:]
    return bytes(data)


def receive_listing_and_blocks(
    address: str, key: bytes, item: str, verify: Verify, first: Callable[[], int]
) -> Iterator[Listing | tuple[int, bytes, str]]:
    """Yield the listing of an item and then its blocks with their sums, as another node has them.

    `first` is asked, once the listing is taken, from which block on. Raises ProviderLostError.
    """
    try:
        with _request_frames(address, key, item, 0) as (connection, session):
            listing = Listing.from_text(_receive_frame(connection, session, 0)[0])
            yield listing
            start = first()
        if start >= listing.blocks:
            return
        with _request_frames(address, key, item, start + 1) as (connection, session):
            for block in range(start, listing.blocks):
                data, signed = _receive_frame(connection, session, block + 1)
                found = compute_sum(data, verify)
                if _encode_sum(found).ljust(32, b"\0") != signed:
                    raise ProviderLostError(f"block {block} came damaged")
                yield block, data, found
    except (OSError, ValueError) as error:
        raise ProviderLostError(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def _request_frames(address: str, key: bytes, item: str, frame: int) -> Iterator[tuple[socket.socket, bytes]]:
    """Yield a connection by which another node sends frames from this one on, and its key."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
        connection.settimeout(_SILENT_S)
        theirs, ours = _receive(connection, 32), secrets.token_bytes(32)
        connection.sendall(ours + _sign(key, b"child", theirs, ours))
        if not hmac.compare_digest(_receive(connection, 32), _sign(key, b"parent", ours, theirs)):
            raise ProviderLostError("it does not know the secret")
        session = _sign(key, b"session", theirs, ours)
        text = json.dumps({"item": item, "from": frame}).encode()
        connection.sendall(len(text).to_bytes(2) + text + _sign(session, text))
        yield connection, session


def _receive_frame(connection: socket.socket, session: bytes, wanted: int) -> tuple[bytes, bytes]:
    while True:
        frame, size, found, mac = _HEAD.unpack(_receive(connection, _HEAD.size))
        if not hmac.compare_digest(mac, _sign(session, b"%d %d" % (frame, size), found)):
            raise ProviderLostError("a block is forged")
        if frame == _BEAT:
            continue
        if frame != wanted or size > (BLOCK if wanted else _MOST_LISTING):
            raise ProviderLostError(f"frame {frame} came for {wanted}")
        data = _receive(connection, size)
        if not wanted and hashlib.sha256(data).digest() != found:
            raise ProviderLostError("the listing came damaged")
        return data, found


def compute_direct_seconds(size: int, nodes: int) -> float:
    """Return how long it takes if every node reads from the file system."""
    return max(nodes * size / _FILE_SYSTEM, size / _NODE)


def compute_tree_seconds(size: int, nodes: int) -> float:
    """Return how long it takes if one node reads, and each serves two others while it receives."""
    depth = (max(nodes, 1)).bit_length() - 1
    slowest = min(_NODE, _LINK / _CHILDREN, _FILE_SYSTEM)
    return size / slowest + depth * _LEVEL_S


def is_tree_better(size: int, nodes: int) -> bool:
    """Return whether a tree is faster, or as fast within a tenth: then it spares the file system."""
    if nodes < 2 or not size:  # noqa: PLR2004
        return False
    return compute_tree_seconds(size, nodes) <= 1.1 * compute_direct_seconds(size, nodes)


def list_providers(place: int) -> tuple[int, ...]:
    """Return from whom the node at a place of the tree gets data, nearest first.

    These are its ancestors, then the root's heir: if the root is lost, one node alone reads on from
    the source. A provider's place is always lower: nobody waits for a node that waits for it.
    """
    found, above = list[int](), place
    while above > 0:
        above = (above - 1) // _CHILDREN
        found.append(above)
    return (*found, 1) if place > 1 and 1 not in found else (*found,)


def assign_providers(nodes: int, ready: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the providers of each of `nodes` nodes, as places.

    Nodes that are `ready` have all of it: the others get it from these, two at a time.
    """
    if not ready:
        return tuple(list_providers(place) for place in range(nodes))
    turned = [(*ready[first:], *ready[:first])[:3] for first in range(len(ready))]
    return tuple(() if place in ready else turned[place % len(ready)] for place in range(nodes))
