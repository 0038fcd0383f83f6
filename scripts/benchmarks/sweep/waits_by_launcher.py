"""A sweep that waits, by hydra-submitit-launcher's own means; does what it reads, line by line.

It waits for what it submitted by itself: an hour of the clock that submitit looks at, in which its
questions are really asked. The arguments are the application's.
"""

import contextlib
import sys

from app import main
from clock import Clock
from submitit.core import core


class ToldClock(Clock):
    """A clock that first says that all has been submitted, and stands still until it is told."""

    started = False

    def sleep(self, seconds: float) -> None:
        """Let time pass once told to."""
        if not self.started:
            self.started = True
            print("submit", flush=True)
            sys.stdin.readline()
        super().sleep(seconds)


core._time = ToldClock()  # noqa: SLF001
sys.stdin.readline()
with contextlib.suppress(KeyboardInterrupt):
    main()
print("wait", flush=True)
