"""One fork server for all launches of a test session on this machine, started when one asks."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from hpckit.runtime.environ import FORK_SERVER
from hpckit.runtime.fork_server.owner import open_fork_server_socket, start_fork_server

PRELOADED = """
import os, runpy
given = dict(os.environ)
import sklearn.datasets  # sets some
os.environ.clear()
os.environ.update(given)
runpy.run_module("hpckit.runtime.rank.process", run_name="__main__", alter_sys=True)
"""
"""As a fork server starts, with what the shipped example `digits` imports: a second a rank."""
OF_MOST_RUNS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
"""With other variables that Python or torch read when they start, a rank begins in a fresh one."""


@contextlib.contextmanager
def fork_server_of_job(job: str) -> Iterator[str]:
    """Start one whose owner is in this Slurm job, and return its socket: others are not asked."""
    environ = {name: value for name, value in os.environ.items() if name != FORK_SERVER}
    with subprocess.Popen(
        [sys.executable, __file__],
        env=environ | {"SLURM_JOB_ID": job},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        yield owner.stdout.readline().strip()
        owner.communicate()


@contextlib.contextmanager
def shared_fork_server() -> Iterator[None]:
    """Let agents find it: importing torch for each rank would take a third of a session."""
    theirs, ours = os.pipe()
    with tempfile.TemporaryDirectory(prefix="hpckit-") as folder:
        listener = open_fork_server_socket(Path(folder) / "fork")
        started: list[subprocess.Popen[bytes]] = []
        variables = {**os.environ, **OF_MOST_RUNS}  # not those that the first test to ask may have changed

        def start() -> None:
            called = listener.fileno()
            if called in select.select([called, theirs], [], [])[0]:
                words = (sys.executable, "-P", "-c", PRELOADED)
                with listener:
                    process = start_fork_server(listener, theirs, variables, Path(folder), words)
                started.append(process)

        waiting = threading.Thread(target=start, daemon=True)
        waiting.start()
        os.environ[FORK_SERVER] = str(Path(folder) / "fork")
        yield
        os.environ.pop(FORK_SERVER, None)
        os.close(ours)
        waiting.join()
        os.close(theirs)
        listener.close()
        for process in started:
            process.wait(30)


if __name__ == "__main__":
    with shared_fork_server():
        print(os.environ[FORK_SERVER], flush=True)  # noqa: T201  # to fork_server_of_job
        sys.stdin.read()
