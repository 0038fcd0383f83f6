"""A person at a terminal of 80 columns: a real program on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_LIMIT_S = 120.0
"""Guards against a program that hangs; no test expects a duration."""


@dataclass(slots=True, kw_only=True)
class Sitting:
    """`hpckit WORDS`, started on a terminal of its own; `said` is all it has written there."""

    words: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    columns: int = 80
    said: str = ""
    process: subprocess.Popen[bytes] = field(init=False)
    terminal: int = field(default=-1, init=False)
    inner: int = field(default=-1, init=False)

    def __enter__(self) -> Self:
        self.terminal, self.inner = pty.openpty()
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        # The first terminal that the leader of a session opens becomes its own: Ctrl-C needs that.
        sit_down = ["sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', os.ttyname(self.inner)]
        self.process = subprocess.Popen(
            [*sit_down, sys.executable, "-P", "-m", "hpckit", *self.words],
            cwd=self.cwd,
            env={**self.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.inner)

    def until(self, text: str) -> None:
        """Read until the program has written this."""
        deadline = time.monotonic() + _LIMIT_S
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            assert self._read(), f"it ended without {text!r}: {self.said}"

    def press(self, keys: str) -> None:
        """Press keys, Ctrl-C as the character that it sends."""
        os.write(self.terminal, keys.encode())

    def exit_code(self) -> int:
        """Return the exit code, once it has ended by itself."""
        deadline = time.monotonic() + _LIMIT_S
        while self._read():
            assert time.monotonic() < deadline, self.said
        return self.process.wait(timeout=_LIMIT_S)

    def _read(self) -> bool:
        """Take in what is there, waiting a little; False where it has ended and said all."""
        ended = self.process.poll() is not None
        ready, _, _ = select.select([self.terminal], [], [], 0 if ended else 0.5)
        if ready:
            self.said += os.read(self.terminal, 65536).decode(errors="replace")
        return bool(ready) or not ended
