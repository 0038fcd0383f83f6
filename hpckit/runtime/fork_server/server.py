"""Forks ranks from one process that has imported torch: a start takes milliseconds, not seconds.

It is a rank's own main module that got no further than its imports: what it forks returns from
`serve` and goes on as a rank. It starts no thread, uses no GPU and runs none of the user's code. It
leaves when the process that started it is gone and no agent is left; ranks end with their agent.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import selectors
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpckit.runtime.environ import become
from hpckit.runtime.fork_server.fresh import (
    begin_fresh,
    hides_module,
    is_executable,
    read_at_start,
    search_path,
)
from hpckit.runtime.fork_server.protocol import (
    LISTENER,
    OWNER,
    ForkAnswer,
    ReceivedOrder,
    encode_answer,
    keep_variables,
    peer,
    receive_order,
)
from hpckit.runtime.imports import imports_to_keep
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedStart:
    """How a forked rank began; what a fresh Python needs to begin instead."""

    python: str
    variables: Mapping[str, str]
    files: tuple[int, ...]

    def begin_fresh_if_changed(self, variables: Mapping[str, str]) -> None:
        """Start again if what is read at start has changed: the user's module came before torch."""
        if read_at_start(variables) != read_at_start(self.variables):
            begin_fresh(self.python, self.variables, self.files)


def serve(environ: Mapping[str, str], modules: Iterable[str]) -> ForkedStart | None:
    """Import these modules and fork ranks until nothing needs them any more, then return None.

    In a rank it returns how that began.
    """
    with imports_to_keep():
        for name in modules:
            importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return None  # no fork could use the GPU: ranks have to be Pythons of their own
    server = _ForkServer(
        listener=socket.socket(fileno=int(environ[LISTENER])),
        owner=int(environ[OWNER]),
        at_start=read_at_start(environ),
        path=search_path(environ),
    )
    return server.serve()


@dataclass(slots=True, kw_only=True)
class _ForkServer:
    """`children` maps a process to the connection that ordered it, and the order's number."""

    listener: socket.socket
    owner: int
    at_start: Mapping[str, str]
    path: list[str]
    owned: bool = True
    children: dict[int, tuple[socket.socket, int]] = field(default_factory=dict, init=False)
    connections: set[socket.socket] = field(default_factory=set, init=False)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    wakers: tuple[socket.socket, socket.socket] = field(
        default_factory=socket.socketpair, init=False
    )

    def serve(self) -> ForkedStart | None:
        for number in NOTICES:
            signal.signal(number, signal.SIG_IGN)
        for waker in self.wakers:
            waker.setblocking(False)  # noqa: FBT003  # the socket's own signature
        signal.set_wakeup_fd(self.wakers[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes, and need not do more
        for source in (self.listener, self.owner, self.wakers[0]):
            self.selector.register(source, selectors.EVENT_READ)
        while self.owned or self.connections:
            for key, _ in self.selector.select():
                started = self._heed(key.fileobj)
                if started is not None:
                    return started
        self._remove_socket()
        return None

    def _remove_socket(self) -> None:
        """Leave nothing on the node: the process that made the socket may have been killed."""
        path = Path(self.listener.getsockname())
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()

    def _heed(self, source: object) -> ForkedStart | None:
        if source is self.listener:
            self._accept()
        elif source is self.wakers[0]:
            with contextlib.suppress(BlockingIOError):
                self.wakers[0].recv(4096)
            self._tell_ends()
        elif isinstance(source, socket.socket):
            return self._receive(source)
        else:
            self.owned = False
            self.selector.unregister(self.owner)
        return None

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        _, user = peer(connection)
        if user != os.geteuid():
            connection.close()
            return
        self.connections.add(connection)
        self.selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> ForkedStart | None:
        if connection not in self.connections:
            return None
        try:
            received = receive_order(connection)
        except OSError:
            received = None
        if received is None:
            self._drop(connection)
            return None
        pid = os.fork()
        if not pid:
            return self._begin_rank(received)
        received.close()
        self.children[pid] = (connection, received.order.number)
        self._answer(connection, ForkAnswer(number=received.order.number, pid=pid))
        return None

    def _drop(self, connection: socket.socket) -> None:
        """End the ranks of an agent that is gone."""
        self.selector.unregister(connection)
        self.connections.discard(connection)
        connection.close()
        for pid, (orderer, _) in self.children.items():
            if orderer is connection:
                for end in (os.killpg, os.kill):  # it may not lead its group yet
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        end(pid, signal.SIGKILL)

    def _tell_ends(self) -> None:
        for pid in tuple(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection, number = self.children.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self._answer(connection, ForkAnswer(number=number, code=code))

    def _answer(self, connection: socket.socket, answer: ForkAnswer) -> None:
        if connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send(encode_answer(answer))

    def _begin_rank(self, received: ReceivedOrder) -> ForkedStart:
        """Become the rank that was ordered; in a fresh Python where a fork would differ."""
        order, (file, log, *lines) = received.order, received.files
        os.setsid()
        for number in (*NOTICES, signal.SIGCHLD):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for one in (self.listener, *self.connections, *self.wakers):
            one.close()
        os.close(self.owner)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(log)
        variables = keep_variables(file)
        variables |= {name: str(line) for name, line in zip(order.lines, lines, strict=True)}
        os.sched_setaffinity(0, order.cpus)
        os.chdir(order.folder)
        folders = search_path(variables)
        new = [one for one in folders if one not in self.path]
        same = is_executable(order.python) and read_at_start(variables) == self.at_start
        if not same or set(self.path) - set(folders) or hides_module(new, sys.modules):
            begin_fresh(order.python, variables, lines)
        sys.path[:] = [*folders, *(one for one in sys.path if one not in folders)]
        become(variables)
        _reseed()
        return ForkedStart(python=order.python, variables=variables, files=tuple(lines))


def _reseed() -> None:
    """Give the generators that a fresh process would seed by chance another state."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
