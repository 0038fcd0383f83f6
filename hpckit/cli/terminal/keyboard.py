"""Reads single keys from the terminal during a live view, and restores the terminal afterwards."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from hpckit.context import Context

NEXT_PAGE = frozenset({"n", " ", "\x1b[6~"})
PREVIOUS_PAGE = frozenset({"p", "b", "\x1b[5~"})
QUIT = frozenset({"q"})

_SEQUENCE_BYTES = 8
"""The most bytes that one key sends, as PgDn does."""

Wait = Callable[[float], str]
"""Waits this many seconds for a key and returns it; empty if none was pressed."""


@contextmanager
def keys(context: Context) -> Iterator[Wait]:
    """Give what waits for a key; without a user at the terminal it only sleeps."""
    if not (context.terminal and sys.stdin is not None and sys.stdin.isatty()):
        yield partial(_sleep, context)
        return
    terminal = sys.stdin.fileno()
    if os.tcgetpgrp(terminal) != os.getpgrp():
        # In the background (a shell's `&`): a process that touches the terminal then is stopped.
        yield partial(_sleep, context)
        return
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield partial(_hear, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _sleep(context: Context, seconds: float) -> str:
    context.sleep(seconds)
    return ""


def _hear(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, _SEQUENCE_BYTES).decode(errors="replace") if ready else ""
