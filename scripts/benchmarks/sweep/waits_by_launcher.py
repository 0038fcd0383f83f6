"""A sweep that waits, by hydra-submitit-launcher's own means; reads commands line by line.

It waits for its own submission: an hour of the clock that submitit uses, in which its queries are
really made. The arguments are the application's.
"""

import contextlib
import sys

from app import main
from clock import Clock
from submitit.core import core


class ToldClock(Clock):  # type: ignore[misc]
    """A clock that first reports that all is submitted, and then stops until the next command."""

    started = False

    def sleep(self, seconds: float) -> None:
        """Advance the time, at the first call only after a command."""
        if not self.started:
            self.started = True
            print("submit", flush=True)
            sys.stdin.readline()
        super().sleep(seconds)


core._time = ToldClock()  # type: ignore[attr-defined]  # noqa: SLF001
sys.stdin.readline()
with contextlib.suppress(KeyboardInterrupt):
    main()
print("wait", flush=True)
