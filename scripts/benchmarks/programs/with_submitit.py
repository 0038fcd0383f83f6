"""A sweep that waits, by submitit's own means: FOLDER RUNS BEGIN; does what it reads, line by line.

An hour of waiting is an hour of the clock that submitit looks at; its questions are really asked.
"""

import contextlib
import subprocess
import sys
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


def main() -> None:
    """Import, submit, look, wait, as told."""
    folder, runs, begin = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jobs = []
    for line in sys.stdin:
        word = line.strip()
        if word == "submit":
            import submitit  # noqa: PLC0415

            executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
            executor.update_parameters(
                timeout_min=60,
                slurm_array_parallelism=runs,
                slurm_partition="batch",
                slurm_additional_parameters={"begin": begin},
            )
            jobs = executor.map_array(abs, range(runs))
        elif word == "look":
            jobs[0].watcher.update()
        elif word == "wait":
            from submitit.core import core  # noqa: PLC0415

            core._time = Clock()  # noqa: SLF001
            jobs[0].watcher.clear()
            with contextlib.suppress(KeyboardInterrupt):
                jobs[0].wait()
        elif word == "cancel":
            subprocess.run(["scancel", jobs[0].job_id.partition("_")[0]], check=True)
        print(word, flush=True)


main()
