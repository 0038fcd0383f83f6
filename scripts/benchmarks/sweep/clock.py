"""A clock for submitit's waiting, in which an hour passes at once."""

import time

HOUR_S = 3600.0


class Clock:
    """A clock that sleeping advances at once."""

    def __init__(self) -> None:
        self.now = time.time()
        self.until = self.now + HOUR_S

    def time(self) -> float:
        """Return the present time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the time; raise KeyboardInterrupt after an hour."""
        self.now += seconds
        if self.now > self.until:
            raise KeyboardInterrupt
