"""What of a node's health is outside its GPUs: names, the file system of the run, free memory."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_BYTES = 4096


def addresses_of(name: str) -> tuple[str, ...] | None:
    """Return the addresses that a host's name has on this node; None if it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return tuple(sorted({str(one[4][0]) for one in found}))


def unresolved_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of hosts that this node does not know."""
    return tuple(one for one in names if addresses_of(one) is None)


def time_write(folder: Path) -> float:
    """Return how many seconds it takes to make, fill, flush and remove a small file; OSError."""
    file = folder / f".hpckit-{secrets.token_hex(8)}"
    began = time.monotonic()
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(handle, b"\0" * _BYTES)
        os.fsync(handle)
    finally:
        os.close(handle)
        file.unlink(missing_ok=True)
    return time.monotonic() - began


def available_memory(granted: int | None) -> int | None:
    """Return the bytes of memory that a run could take now, of those that are `granted` to it."""
    free = int(psutil.virtual_memory().available)
    return free if granted is None else min(free, granted)
