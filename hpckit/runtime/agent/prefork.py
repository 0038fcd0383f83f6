"""An agent that is forked ahead and waits for its attempt: on one node, where many runs are short.

Responsible for that wait, and for becoming an agent as one that is started as a program; it must
not be made once threads or an event loop run, which a fork would tear apart.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.agent import agent
from hpckit.runtime.assignment import ReadyAgent
from hpckit.runtime.environ import become
from hpckit.runtime.forked import Forked
from hpckit.runtime.signals import NOTICES


@contextlib.contextmanager
def ready_agent() -> Iterator[ReadyAgent]:
    """Yield an agent in waiting; one that was never told anything leaves at the end."""
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe(duplex=False)

    def begin(words: Sequence[str], environ: Mapping[str, str], log: Path) -> Forked:
        order = {"words": list(words), "environ": dict(environ), "log": str(log)}
        ours.send_bytes(json.dumps(order).encode())
        return agent_process

    with ours:
        process = context.Process(target=_attend, args=(theirs, ours))
        process.start()
        theirs.close()
        agent_process = Forked(process)
        yield begin


def _attend(line: Connection, other_end: Connection) -> None:
    # Else it would not see that nobody is left at the other end.
    other_end.close()
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    try:
        order = json.loads(line.recv_bytes())
    except EOFError:
        return
    line.close()
    for number in NOTICES:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    for standard in (sys.stdout, sys.stderr):
        os.dup2(log, standard.fileno())
    os.close(log)
    become(order["environ"])
    sys.exit(agent.main(order["words"]))
