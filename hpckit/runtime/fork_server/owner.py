"""Starts the fork server of a process that has runs started on its machine, and lets it leave."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess  # noqa: TID251  # a fork server is a rank that got no further than its imports
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.errors import HpckitError
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.secret_variables import read_secrets
from hpckit.run_features import AGENT, choose_agent_module
from hpckit.runtime.environ import FORK_SERVER, TERMINAL, remove_rank_variables
from hpckit.runtime.fork_server.client import connect_to_fork_server
from hpckit.runtime.fork_server.protocol import LISTENER, OWNER
from hpckit.runtime.fork_server.server import rank_command
from hpckit.runtime.run_variables import run_variables

_BACKLOG = 512
_LEAVES_S = 5.0


@contextlib.contextmanager
def run_fork_server(
    launch: Launch, runs: Sequence[int], environ: Mapping[str, str], *, of_agent: bool = False
) -> Iterator[dict[str, str]]:
    """Run a fork server for those of these runs that call a function of the user's.

    Runs whose agents are started through a doorway have one of_agent only: it may be another Python.
    Yield the variables by which agents find it: none if no run needs one or there is one already,
    or if no socket can be made. Ranks then start as Pythons of their own.
    """
    variables = (
        None if FORK_SERVER in environ else _find_fork_variables(launch, runs, environ, of_agent=of_agent)
    )
    if variables is None:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        try:
            # On this node, with mode 0700.
            folder = tempfile.TemporaryDirectory(prefix="hpckit-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(folder)) / "fork"
            with open_fork_server_socket(
                path
            ) as listener:  # held by none but the fork server: it ends with it
                stack.enter_context(_run_server_process(listener, variables, launch.folder))
        except OSError:
            yield {}
            return
        yield {FORK_SERVER: str(path)}


@contextlib.contextmanager
def connect_or_run_fork_server(
    launch: Launch, run: int, environ: Mapping[str, str]
) -> Iterator[socket.socket | None]:
    """Yield an agent's connection to the fork server of its job, or else to one of its own.

    None if the run's ranks have to be Pythons of their own. Its own one imports while the agent
    calls the supervisor, and is there for the ranks of all rounds.
    """
    settings, _ = load_run_settings(launch, run)
    if settings.command is not None or not settings.runtime.preload_torch or TERMINAL in environ:
        yield None
        return
    with contextlib.ExitStack() as stack:
        connection = connect_to_fork_server(environ)
        if connection is None:
            others = {name: value for name, value in environ.items() if name != FORK_SERVER}
            connection = connect_to_fork_server(
                {**others, **stack.enter_context(run_fork_server(launch, [run], others, of_agent=True))}
            )
        yield connection


def _find_fork_variables(
    launch: Launch, runs: Sequence[int], environ: Mapping[str, str], *, of_agent: bool
) -> dict[str, str] | None:
    """Return the variables of a run whose ranks may be forked; others mostly share them.

    One run of each stage is looked at: those of a stage call the same function, or are commands.
    """
    firsts = {launch.runs[index].stage: index for index in reversed(runs)}
    for index in sorted(firsts.values()):
        with contextlib.suppress(HpckitError):  # its supervisor tells
            settings, config = load_run_settings(launch, index)
            ours = of_agent or choose_agent_module(settings, config) == AGENT
            if ours and settings.command is None and settings.runtime.preload_torch:
                secrets = read_secrets(launch.paths, index, settings)
                return remove_rank_variables(run_variables(launch, index, settings, secrets, environ))
    return None


def open_fork_server_socket(path: Path) -> socket.socket:
    """Return a socket for a fork server; raises OSError, for example if the path is too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def start_fork_server(
    listener: socket.socket,
    owner: int,
    variables: Mapping[str, str],
    folder: Path,
    words: Sequence[str] = tuple(rank_command(sys.executable)),
) -> subprocess.Popen[bytes]:
    """Start a fork server; raises OSError. It leaves when the other end of `owner` is closed."""
    named = {LISTENER: str(listener.fileno()), OWNER: str(owner)}
    return subprocess.Popen(
        words,
        cwd=folder,
        env={**variables, **named},
        stdin=subprocess.DEVNULL,
        pass_fds=(listener.fileno(), owner),
        process_group=0,  # but in the session of its owner: sessions of their own are ranks'
    )


@contextlib.contextmanager
def _run_server_process(
    listener: socket.socket, variables: Mapping[str, str], folder: Path
) -> Iterator[None]:
    theirs, ours = os.pipe()
    try:
        process = start_fork_server(listener, theirs, variables, folder)
    finally:
        os.close(theirs)
    try:
        yield
    finally:
        os.close(ours)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVES_S)
