"""An agent that is forked ahead and waits for its attempt: for many short runs on one node.

It then behaves like an agent that was started as a program. Create it before threads or an event
loop run, because a fork would break them.
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
from hpckit.runtime.environ import replace_environment
from hpckit.runtime.forked import Forked
from hpckit.runtime.signals import NOTICES


@contextlib.contextmanager
def prefork_agent() -> Iterator[ReadyAgent]:
    """Yield a waiting agent; if it never gets an attempt, it leaves at the end."""
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe(duplex=False)

    def begin(words: Sequence[str], environ: Mapping[str, str], log: Path) -> Forked:
        order = {"words": list(words), "environ": dict(environ), "log": str(log)}
        ours.send_bytes(json.dumps(order).encode())
        return agent_process

    with ours:
        process = context.Process(target=_wait_then_run_agent, args=(theirs, ours))
        process.start()
        theirs.close()
        agent_process = Forked(process)
        yield begin


def _wait_then_run_agent(line: Connection, other_end: Connection) -> None:
    # Otherwise it would not notice that the other end has no process left.
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
    replace_environment(order["environ"])
    sys.exit(agent.main(order["words"]))
