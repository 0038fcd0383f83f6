"""Promises of `status --watch` to a person at a keyboard."""

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
from typing import Any

import pytest

RUNS = 25
_PATIENCE_S = 60.0


@pytest.fixture
def terminal() -> Any:
    """Open a terminal of forty lines; return a person's end of it, and the program's."""
    person, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    yield person, program
    os.close(person)
    os.close(program)


def read_until(person: int, text: str) -> str:
    """Read what is shown until this is; fails where it is not in time."""
    seen, deadline = "", time.monotonic() + _PATIENCE_S
    while text not in seen:
        ready, _, _ = select.select([person], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"{text!r} was not shown: {seen}"
        seen += os.read(person, 65536).decode(errors="replace")
    return seen


@pytest.mark.slow
def test_watch_turns_pages_and_leaves_the_terminal_as_it_was(desk: Any, writer: Any, terminal: Any) -> None:
    """A list too long for the screen is read page by page; q ends the watching with 0."""
    launch = desk.freeze(sweep=[(f"i={number}",) for number in range(RUNS)])
    for index in range(RUNS):
        writer(launch=launch, index=index).start()
    person, program = terminal
    before = termios.tcgetattr(program)
    words = (sys.executable, "-m", "hpckit", "status", "--watch", "1", str(launch.folder))
    # The terminal has to be that of the session: only its foreground may read keys.
    process = subprocess.Popen(
        ("setsid", "--ctty", "--wait", *words),
        stdin=program,
        stdout=program,
        stderr=program,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        read_until(person, "1 to 10 of 25")
        os.write(person, b"n")
        read_until(person, "11 to 20 of 25")
        os.write(person, b"\x1b[6~")
        read_until(person, "21 to 25 of 25")
        os.write(person, b"p")
        read_until(person, "11 to 20 of 25")
        os.write(person, b"q")
        assert process.wait(_PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert termios.tcgetattr(program) == before
