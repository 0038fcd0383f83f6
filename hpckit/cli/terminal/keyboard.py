"""Single keys of a person at a terminal, while something is shown again and again.

Responsible for reading them and for leaving the terminal as it was; it must not know what they do.
"""

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
"""What one key sends at the most, as PgDn does."""

Wait = Callable[[float], str]
"""Waits so many seconds for a key, and returns it; empty when none came."""


@contextmanager
def keys(context: Context) -> Iterator[Wait]:
    """Hear keys for a while, where somebody is there; who is not, and no terminal, only sleeps."""
    if not (context.terminal and sys.stdin is not None and sys.stdin.isatty()):
        yield partial(_sleep, context)
        return
    terminal = sys.stdin.fileno()
    if os.tcgetpgrp(terminal) != os.getpgrp():
        # Behind a shell's `&`: who touches the terminal then is stopped.
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
