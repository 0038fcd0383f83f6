"""The clock that submitit's waiting looks at, for an hour that passes at once."""

import time

HOUR_S = 3600.0


class Clock:
    """A clock that sleeping moves on at once."""

    def __init__(self) -> None:
        self.now = time.time()
        self.until = self.now + HOUR_S

    def time(self) -> float:
        """Return the moment."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass; after an hour, stop."""
        self.now += seconds
        if self.now > self.until:
            raise KeyboardInterrupt
