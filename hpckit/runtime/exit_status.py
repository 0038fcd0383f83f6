"""With which status the script asked to exit, which Python tells nothing that runs at its end.

Responsible for noting calls of `sys.exit` that really end the process; it must not change them.
`raise SystemExit(1)` without `sys.exit` goes unnoticed.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

_asked: list[object] = []


class NotedExit(SystemExit):
    """A SystemExit that takes its note back when the script catches it and goes on."""

    def __del__(self) -> None:
        """Forget the status while Python code still runs in this thread: it was caught there."""
        try:
            sys._getframe(1)  # noqa: SLF001  # a frame below is the only sign
        except ValueError:
            return
        _asked.clear()


def note_exits() -> None:
    """Have calls of `sys.exit` in the main thread noted from now on."""
    sys.exit = _exit


def exits_as_failed() -> bool:
    """Return whether the script ends by `sys.exit` with a status that is no success."""
    return any(status is not None and status != 0 for status in _asked)


def _exit(status: Any = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit(status)
    _asked[:] = [status]
    raise NotedExit(status)
