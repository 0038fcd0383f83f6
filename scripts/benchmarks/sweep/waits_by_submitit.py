"""A sweep that waits, by submitit's own means: FOLDER RUNS BEGIN; reads commands line by line.

An hour of waiting is an hour of the clock that submitit uses; its queries are really made.
"""

import contextlib
import subprocess
import sys

from by_submitit import submit
from clock import Clock
from submitit.core import core


def main() -> None:
    """Submit, look, wait and cancel, as commanded."""
    folder, runs, begin = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jobs = []
    for line in sys.stdin:
        word = line.strip()
        if word == "submit":
            jobs = submit(folder, runs, begin)
        elif word == "look":
            jobs[0].watcher.update()
        elif word == "wait":
            core._time = Clock()  # type: ignore[attr-defined]  # noqa: SLF001
            jobs[0].watcher.clear()
            with contextlib.suppress(KeyboardInterrupt):
                jobs[0].wait()
        elif word == "cancel":
            subprocess.run(["scancel", jobs[0].job_id.partition("_")[0]], check=True)
        print(word, flush=True)


main()
