"""The exit status of this process when its script failed.

Notes calls of `sys.exit`, `exit` and `quit` that really end the process, because Python does not
pass the status to code that runs at its end, and exits with a status within seconds. `raise
SystemExit(1)` goes unnoticed.
"""

from __future__ import annotations

import atexit
import builtins
import dis
import os
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

_LEAVE_S = 10.0
_asked: list[object] = []
_script: list[FrameType] = []
"""The frame of the script itself: the last thing it did tells whether it came to its end."""


class NotedExit(SystemExit):
    """A SystemExit that removes its note if the script catches it and continues."""

    def __del__(self) -> None:
        """Forget the status if Python code still runs in this thread: the exit was caught there."""
        try:
            sys._getframe(1)  # noqa: SLF001  # a frame below is the only sign
        except ValueError:
            return
        _asked.clear()


class ExitStatus:
    """How a rank leaves that did not return: soon, and with its own exit code.

    A thread may keep Python from ending while the peers wait in a collective for minutes; and a
    process group that is torn down with the interpreter may abort it (torch 2.13 on gloo), so that
    exit code 1 becomes SIGABRT. The handler runs after those that were registered later; handlers
    that were registered before it do not run.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._exit_now)

    def force_exit_soon(self, code: int) -> int:
        """Return the code, and make sure the process exits with it within seconds."""
        self.code = code
        timer = threading.Timer(_LEAVE_S, self._exit_now)
        timer.daemon = True
        timer.start()
        return code

    def _exit_now(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def note_exit_calls() -> None:
    """Note calls of `sys.exit`, `exit` and `quit` in the main thread from now on."""
    sys.exit = _exit_noting_status
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  # documented
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            _script[:] = [frame]
        frame = frame.f_back
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":  # not under `python -S`
        quitter.__call__ = _quit_like_python  # type: ignore[method-assign]  # of both, wherever they are known


def find_failing_code() -> int | None:
    """Return the exit code of a script that raised or exited with a failure; None otherwise."""
    if getattr(sys, "last_value", None) is not None:
        return 1
    for frame in _script:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN"):
            return None  # what it asked for before was caught
    codes = [code for status in _asked if (code := status_to_exit_code(status)) != 0]
    return codes[0] if codes else None


def status_to_exit_code(status: object) -> int:
    """Return the code with which Python ends for `SystemExit(status)`."""
    return status & 0xFF if isinstance(status, int) else int(status is not None)


def _quit_like_python(_quitter: Any, code: Any = None) -> NoReturn:
    """Exit as Python's own `exit(code)` does, which closes standard input."""
    with suppress(Exception):
        sys.stdin.close()
    _exit_noting_status(code)


def _exit_noting_status(status: Any = None, /) -> NoReturn:
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit(status)
    _asked[:] = [status]
    raise NotedExit(status)
