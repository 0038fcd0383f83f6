"""Says what this rank's collectives are, from torch's flight recorder, when its agent asks.

It answers in a thread. A dump without stacks takes about 0.1 s; with them torch may need 7 s to
name the first ones (measured with torch 2.13), and the agent has the stacks already.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from hpckit.model.diagnosis.collectives import RankCollectives
from hpckit.model.failure import Cause, RankExit
from hpckit.model.plain import to_plain
from hpckit.model.rank import RankInfo
from hpckit.planning.recovery.classify import classify_rank_exit
from hpckit.planning.recovery.flight_recorder import DumpedBy, parse_flight_dumps
from hpckit.record.layout import RoundPaths
from hpckit.record.store import write_json
from hpckit.runtime.channel.rank_pipe import COLLECTIVES_VARIABLE, MOST_BYTES, READY

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of any backend (torch 2.8 on), and of NCCL (2.5 on): a rank may have groups of both."""


def answer_agent_questions(environ: Mapping[str, str], info: RankInfo) -> None:
    """Answer the agent's questions from now on, in a thread that does not keep the process alive.

    Does nothing for a rank that is alone, or whose agent hands it no line.
    """
    number = environ.get(COLLECTIVES_VARIABLE, "")
    if info.world_size < 2 or not number.isdecimal():  # noqa: PLR2004  # one waits for nobody
        return
    with contextlib.suppress(OSError):
        line = socket.socket(fileno=int(number))
        line.set_inheritable(False)
        threading.Thread(target=_answer_questions, args=(line, info), name="collectives", daemon=True).start()


def _answer_questions(line: socket.socket, info: RankInfo) -> None:
    """Answer until the agent is gone. Signals belong to the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with contextlib.suppress(OSError):
        line.sendall(READY)
        while question := line.recv(64):
            found = read_collectives(info)
            said = {
                "question": question.decode(errors="replace").split()[-1:],
                "collectives": None if found is None else to_plain(found),
            }
            text = json.dumps(said).encode()
            line.sendall((text if len(text) < MOST_BYTES else b"{}") + b"\n")


def read_collectives(info: RankInfo, *, gave_up: bool = False) -> RankCollectives | None:
    """Return what this rank's collectives are; None if torch has recorded none.

    `gave_up` is whether it has left the latest one by an exception.
    """
    groups = dict(_list_group_ranks())
    by = DumpedBy(rank=info.rank, at_s=time.time(), groups=groups, gave_up=gave_up)
    return parse_flight_dumps(_read_flight_records(), by)


def write_failed_collectives(paths: RoundPaths, info: RankInfo, ended: RankExit) -> None:
    """Write what this rank's collectives were to a file if one of them raised; best effort."""
    with contextlib.suppress(Exception):  # on the way to an end that must not change
        if classify_rank_exit(ended) is not Cause.communication:
            return
        if (found := read_collectives(info, gave_up=True)) is not None:
            write_json(paths.rank_collectives_file(info.rank), to_plain(found))


def _read_flight_records() -> Iterator[Any]:
    module = getattr(torch._C, "_distributed_c10d", None)  # noqa: SLF001  # no public name
    for name in _DUMPS:
        dump = getattr(module, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, ValueError, TypeError):
                yield json.loads(dump(includeCollectives=True, onlyActive=False))


def _list_group_ranks() -> Iterator[tuple[str, list[int]]]:
    world = getattr(getattr(dist, "distributed_c10d", None), "_world", None)
    names, members = getattr(world, "pg_names", {}), getattr(world, "pg_group_ranks", {})
    with contextlib.suppress(RuntimeError, AttributeError, TypeError):  # it may change meanwhile
        for group, ranks in list(members.items()):
            if group in names:
                yield str(names[group]), sorted(ranks)
