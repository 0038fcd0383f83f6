"""Forks ranks from one process that has imported torch: a start takes milliseconds, not seconds.

It is a rank's own main module that got no further than its imports: what it forks returns from
`serve_fork_orders` as a rank. It starts no thread, uses no GPU and runs none of the user's code. It
leaves when the process that started it is gone and no agent is left; ranks end with their agent.

A fork has imported torch already, with the fork server's variables. A rank whose variables, Python
or modules would have made that import another one starts again in the same process, so that forking
changes nothing but the time that a start takes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hpckit.model.plain import to_plain
from hpckit.runtime.environ import replace_environment
from hpckit.runtime.fork_server.protocol import (
    LISTENER,
    OWNER,
    ForkAnswer,
    ReceivedOrder,
    publish_environment_file,
    read_peer_credentials,
    receive_fork_order,
)
from hpckit.runtime.left_behind import become_subreaper, end_orphans
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass, field

_OBJECTS = 200_000
"""Objects made before cycles among them are looked for; `import torch` keeps about as many."""


@contextmanager
def pause_gc_for_imports() -> Iterator[None]:
    """Import without looking for garbage again and again, then never look at all that is kept.

    Saves a third of the processor time of `import torch` together with the end of its process, and
    most of what each full collection takes between two steps. Garbage of the imports is collected.
    What the imported code itself tells the collector holds.
    """
    before = gc.get_threshold()
    raised = (_OBJECTS, *before[1:])
    if before[0] != 0:
        gc.set_threshold(*raised)
    try:
        yield
    finally:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)
    gc.collect()
    gc.freeze()


_READ_AT_START = (
    *("PYTHON", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_", "TCMALLOC_", "JEMALLOC_", "MIMALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "ATEN_", "NPY_"),
    *("TORCH", "PYTORCH_", "KINETO_", "C10_", "DISABLE_ADDMM", "USE_"),
)
"""How the variables begin that Python, the C library, torch and what it loads read only once."""
_READ_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "PYTHONPATH")
"""Read when a process group begins; of PYTHONPATH a fork takes its own."""
_STARTS_PYTHON = {"sitecustomize", "usercustomize"}


def select_startup_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that are read once, by Python or by what `import torch` loads."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
    }


def parse_pythonpath(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH as Python puts them on its path."""
    named = variables.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(name) for name in named if name]  # noqa: PTH100  # as site.py does it


def shadows_imported_module(folders: Iterable[str], imported: Iterable[str]) -> bool:
    """Return whether one of these folders has a module that is imported from elsewhere."""
    names = {name.partition(".")[0] for name in imported} | _STARTS_PYTHON
    for folder in folders:
        try:
            found = set(map(_parse_module_name, os.listdir(folder)))  # noqa: PTH208
        except FileNotFoundError:
            continue
        except OSError:
            return True  # a zip file, or a folder that cannot be read
        if found & names:
            return True
    return False


def _parse_module_name(entry: str) -> str:
    """Return the module that a file or folder may be; the empty text if it is none."""
    name, _, suffix = entry.partition(".")
    return name if suffix in {"", "py"} or suffix.endswith(("so", "pyc")) else ""


def exec_fresh_rank(python: str, variables: Mapping[str, str], files: Iterable[int]) -> NoReturn:
    """Become the rank that a fresh Python makes of it, with these open files; raises OSError."""
    for file in files:
        os.set_inheritable(file, True)  # noqa: FBT003  # the function's own signature
    for number in (*NOTICES, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(python, rank_command(python), dict(variables))  # noqa: S606  # no shell is the point


def rank_command(python: str) -> list[str]:
    """Return the words that start a rank, or the process that forks ranks."""
    return [python, "-P", "-m", "hpckit.runtime.rank.process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedStart:
    """How a forked rank began; what a fresh Python needs to begin instead."""

    python: str
    variables: Mapping[str, str]
    files: tuple[int, ...]

    def exec_fresh_if_variables_changed(self, variables: Mapping[str, str]) -> None:
        """Start again if what is read at start has changed: the user's module came before torch."""
        if select_startup_variables(variables) != select_startup_variables(self.variables):
            exec_fresh_rank(self.python, self.variables, self.files)


def serve_fork_orders(environ: Mapping[str, str], modules: Iterable[str]) -> ForkedStart | None:
    """Import these modules and fork ranks until nothing needs them any more, then return None.

    In a rank it returns how that began.
    """
    with pause_gc_for_imports():
        for name in modules:
            importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return None  # no fork could use the GPU: ranks have to be Pythons of their own
    server = _ForkServer(
        listener=socket.socket(fileno=int(environ[LISTENER])),
        owner=int(environ[OWNER]),
        at_start=select_startup_variables(environ),
        path=parse_pythonpath(environ),
    )
    return server.serve_agents()


@dataclass(slots=True, kw_only=True)
class _Forking:
    """What waits for its connections, and for the ends of what it has forked."""

    at_start: Mapping[str, str]
    path: list[str]
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    wakers: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair, init=False)

    def register_sources(self, *sources: socket.socket | int) -> None:
        for number in NOTICES:
            signal.signal(number, signal.SIG_IGN)
        for waker in self.wakers:
            waker.setblocking(False)  # noqa: FBT003  # the socket's own signature
        signal.set_wakeup_fd(self.wakers[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes, and need not do more
        for source in (*sources, self.wakers[0]):
            self.selector.register(source, selectors.EVENT_READ)

    def wait_for_ready_sources(self) -> set[object]:
        """Wait, and return what can be read."""
        sources: set[object] = {key.fileobj for key, _ in self.selector.select()}
        with contextlib.suppress(BlockingIOError):
            self.wakers[0].recv(4096)
        return sources

    def reap_children(self) -> Iterator[tuple[int, int]]:
        """Yield children that have ended, adopted ones too, and their exit codes."""
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                yield child[0], os.waitstatus_to_exitcode(child[1])

    def close(self) -> None:
        """Leave nothing of this in a fork."""
        self.selector.close()
        for waker in self.wakers:
            waker.close()


@dataclass(slots=True, kw_only=True)
class _ForkServer(_Forking):
    """Forks one process for each agent, which forks that agent's ranks: `keepers`."""

    listener: socket.socket
    owner: int
    owned: bool = True
    keepers: set[int] = field(default_factory=set, init=False)

    def serve_agents(self) -> ForkedStart | None:
        self.register_sources(self.listener, self.owner)
        while self.owned or self.keepers:
            ready = self.wait_for_ready_sources()
            if self.owner in ready:
                self.owned = False
                self.selector.unregister(self.owner)
            keeper = self._fork_keeper() if self.listener in ready else None
            if keeper is not None:
                return keeper.serve_agent()
            self.keepers -= {pid for pid, _ in self.reap_children()}
        # The process that made the socket may have been killed.
        path = Path(self.listener.getsockname())
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()
        return None

    def _fork_keeper(self) -> _Keeper | None:
        connection, _ = self.listener.accept()
        with connection:
            _, user = read_peer_credentials(connection)
            pid = os.fork() if user == os.geteuid() else None
            if pid == 0:
                self.close()
                self.listener.close()
                os.close(self.owner)
                own = socket.socket(fileno=connection.detach())
                return _Keeper(connection=own, at_start=self.at_start, path=self.path)
            if pid is not None:
                self.keepers.add(pid)
        return None


@dataclass(slots=True, kw_only=True)
class _Keeper(_Forking):
    """Forks the ranks of one agent, adopts what they leave behind, and leaves with the agent.

    `ranks` maps a process to the number of the order that it was forked for.
    """

    connection: socket.socket
    ranks: dict[int, int] = field(default_factory=dict, init=False)

    def serve_agent(self) -> ForkedStart | None:
        become_subreaper()
        self.register_sources(self.connection)
        while True:
            if self.connection in self.wait_for_ready_sources():
                received = None
                with contextlib.suppress(OSError):
                    received = receive_fork_order(self.connection)
                if received is None:
                    self._end_ranks()
                    return None
                number, grace_s = received.order.number, received.order.grace_s
                if grace_s is not None:
                    stay = end_orphans(self.ranks, grace_s)
                    self._send_answer(ForkAnswer(number=number, code=len(stay)))
                    continue
                pid = os.fork()
                if not pid:
                    return self._become_rank(received)
                received.close_files()
                self.ranks[pid] = number
                self._send_answer(ForkAnswer(number=number, pid=pid))
            for pid, code in self.reap_children():
                if pid in self.ranks:
                    self._send_answer(ForkAnswer(number=self.ranks.pop(pid), code=code))

    def _end_ranks(self) -> None:
        self.connection.close()
        for pid in self.ranks:  # it may not lead its session yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_orphans()

    def _send_answer(self, answer: ForkAnswer) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(to_plain(answer)).encode())

    def _become_rank(self, received: ReceivedOrder) -> ForkedStart:
        """Become the rank that was ordered; in a fresh Python where a fork would differ."""
        order, (file, log, *lines) = received.order, received.files
        os.setsid()
        for number in (*NOTICES, signal.SIGCHLD):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
        signal.set_wakeup_fd(-1)
        self.close()
        self.connection.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(log)
        variables = publish_environment_file(file)
        variables |= {name: str(line) for name, line in zip(order.lines, lines, strict=True)}
        os.sched_setaffinity(0, order.cpus)
        os.chdir(order.folder)
        folders = parse_pythonpath(variables)
        new = [folder for folder in folders if folder not in self.path]
        same = Path(sys.executable) == Path(order.python)
        same = same and select_startup_variables(variables) == self.at_start
        if not same or set(self.path) - set(folders) or shadows_imported_module(new, sys.modules):
            exec_fresh_rank(order.python, variables, lines)
        sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]
        replace_environment(variables)
        # The generators that a fresh process would seed by chance.
        random.seed()
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        return ForkedStart(python=order.python, variables=variables, files=tuple(lines))
