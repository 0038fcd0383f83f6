"""Forks ranks of a program from one process that has imported torch: each saves seconds.

Reads a line of JSON for each world, answers with the exit codes of its ranks, by rank, negative
for a signal. Each rank runs its program as `python PROGRAM WORDS...` does. This process only
imports, so that no thread, no socket and no generator's state is inherited.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401  # a rank's first optimizer imports it

import hpckit.runtime.model_check.process
import hpckit.runtime.parallel.build
import hpckit.runtime.rank.checkpointing
import hpckit.runtime.rank.parallel_run
import hpckit.runtime.rank.run  # noqa: F401


def start_rank(rank: int, world: dict[str, Any]) -> int:
    """Fork a rank, and return its process id; 0 in the rank, which has become that."""
    child = os.fork()
    if child:
        return child
    log = os.open(Path(world["logs"], f"{rank}.log"), os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ |= world["environ"] | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.chdir(world["folder"])
    sys.argv[:] = world["words"]
    sys.path[0] = str(Path(world["words"][0]).parent)
    random.seed()
    np.random.seed()  # noqa: NPY002  # what programs that use the global one would have
    faulthandler.dump_traceback_later(world["patience_s"], exit=True)
    return 0


def serve() -> bool:
    """Serve worlds until there is no more input; True in a rank that has yet to work."""
    gc.freeze()  # else each rank looks through all that torch has imported when it leaves
    assert threading.active_count() == 1, threading.enumerate()
    for line in iter(sys.stdin.readline, ""):
        world = json.loads(line)
        children = []
        for rank in range(world["ranks"]):
            children.append(start_rank(rank, world))
            if not children[-1]:
                return True
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)  # noqa: T201  # the protocol
    return False


if __name__ == "__main__" and serve():
    runpy.run_path(sys.argv[0], run_name="__main__")
