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
from hpckit.runtime.fork_server.owner import listen, start_fork_server

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
def shared_fork_server() -> Iterator[None]:
    """Let agents find it: importing torch for each rank would take a third of a session."""
    theirs, ours = os.pipe()
    with tempfile.TemporaryDirectory(prefix="hpckit-") as folder:
        listener = listen(Path(folder) / "fork")
        started: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            called = listener.fileno()
            if called in select.select([called, theirs], [], [])[0]:
                variables = {**os.environ, **OF_MOST_RUNS}
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
