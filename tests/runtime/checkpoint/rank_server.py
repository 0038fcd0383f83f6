"""Forks ranks of a program from one process that has imported it: torch takes seconds to import.

Reads a line of JSON for each world: the orders, the number of ranks, and a folder for what they
print. Answers with the exit codes of its ranks, by rank, negative for a signal. Each rank is a
process that trains, prints and leaves through the interpreter's end as one started as a program;
this one only imports, so that no thread and no generator's state is inherited.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  # a rank's first optimizer imports it, in seconds
from runtime.checkpoint import layouts, trainer, weights_program


def start_rank(rank: int, world: dict[str, Any]) -> int:
    """Fork a rank, and return its process id; 0 in the rank, which has become that."""
    child = os.fork()
    if child:
        return child
    log = os.open(Path(world["logs"], f"{rank}.log"), os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world["ranks"])}
    sys.argv[1:] = [json.dumps(world["orders"])]
    return 0


def serve() -> bool:
    """Serve worlds until there is no more input; True in a rank that has yet to train."""
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
    programs = {
        "trainer": trainer.main,
        "layouts": layouts.main,
        "weights": weights_program.main,
    }
    programs[json.loads(sys.argv[1]).get("program", "trainer")]()
