"""Promises of the fork server: what it forks is what a Python of its own would have been."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fork_server_session import fork_server_of_job
from tiers import thorough
from waiting import run_to_end

from hpckit.model.fault import FaultTarget
from hpckit.model.launch import Recovery
from hpckit.record.process import read_process_start_id
from hpckit.runtime.environ import FORK_SERVER
from hpckit.runtime.fork_server.client import ForkedRank, ForkServerClient, connect_to_fork_server
from hpckit.runtime.fork_server.owner import open_fork_server_socket, start_fork_server
from hpckit.runtime.fork_server.server import select_startup_variables, shadows_imported_module
from hpckit.runtime.processes import ProcessQuery, find_processes

SERVE = """
import os
from hpckit.runtime.fork_server.server import serve_fork_orders
if serve_fork_orders(dict(os.environ), ("json", "socket")) is not None:
    exec(os.environ["PROGRAM"])
"""
"""A fork server without torch; what it forks runs the program of its variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A fork server, and the variables by which agents find it."""

    process: subprocess.Popen[bytes]
    folder: Path
    environ: Mapping[str, str]
    owner: int

    @property
    def log(self) -> Path:
        """Where its ranks print."""
        return self.folder / "log"

    def client(self, **more: str) -> ForkServerClient | None:
        """Connect as an agent with these variables more does."""
        connection = connect_to_fork_server({**self.environ, **more})
        return None if connection is None else ForkServerClient(connection=connection)


@pytest.fixture
def server() -> Iterator[Server]:
    """Start one in a short folder, as a socket's path has to be."""
    with serving(SERVE) as started:
        yield started


@contextmanager
def serving(program: str) -> Iterator[Server]:
    """Run a program that is a fork server."""
    theirs, ours = os.pipe()
    with tempfile.TemporaryDirectory(prefix="hpckit-") as name:
        folder = Path(name)
        listener = open_fork_server_socket(folder / "fork")
        words = (sys.executable, "-P", "-c", program)
        with listener:
            process = start_fork_server(listener, theirs, os.environ, folder, words)
        environ = {**os.environ, FORK_SERVER: str(folder / "fork")}
        yield Server(process=process, folder=folder, environ=environ, owner=ours)
        os.close(theirs)
        os.close(ours)
        process.kill()
        process.wait()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; none takes longer than this."""
    asyncio.run(asyncio.wait_for(work, 60))


async def start(server: Server, client: ForkServerClient, program: str, **more: str) -> ForkedRank:
    """Start a rank that runs a program."""
    log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = os.memfd_create("line")
    variables = {**os.environ, "PROGRAM": program, **more}
    cpus = [min(os.sched_getaffinity(0))]
    try:
        started = await client.start_rank(variables, log, {"LINE": line}, cpus)
    finally:
        os.close(log)
        os.close(line)
    assert started is not None
    return started


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


TELL = """
import json, sys
print(json.dumps({
    "variables": {name: os.environ.get(name) for name in ("OWN", "LINE", "HPCKIT_FORK_SERVER_FD")},
    "cpus": sorted(os.sched_getaffinity(0)),
    "folder": os.getcwd(),
    "leads": os.getsid(0) == os.getpid(),
    "line": os.readlink(f"/proc/self/fd/{os.environ['LINE']}"),
    "input": os.readlink("/proc/self/fd/0"),
    "files": sorted(map(int, os.listdir("/proc/self/fd"))), "path": sys.path[0],
}))
"""


def test_forked_rank_has_what_it_was_given(server: Server, tmp_path: Path) -> None:
    """Variables, CPUs, folder, log, lines and path; and no file, variable or session of others."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        rank = await start(server, client, TELL, OWN="yes", PYTHONPATH=path)
        assert await rank.wait() == 0 == rank.returncode
        client.close()

    run(work())
    told = json.loads(server.log.read_text())
    line = told["variables"]["LINE"]
    assert told["variables"] == {"OWN": "yes", "LINE": line, "HPCKIT_FORK_SERVER_FD": None}
    assert told["cpus"] == [min(os.sched_getaffinity(0))]
    assert (told["folder"], told["path"]) == (os.getcwd(), str(tmp_path))  # noqa: PTH109
    assert told["leads"]
    assert told["line"].startswith("/memfd:line")
    assert told["input"] == "/dev/null"
    # The last one is that of the listing itself, one holds the variables for /proc.
    assert len(told["files"]) == len({0, 1, 2, int(line), 100}) + 1, told["files"]


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("1 / 0", 1), ("pass", 0)],
)
def test_end_of_a_forked_rank_is_told(server: Server, program: str, code: int) -> None:
    """As `subprocess` tells it, while others run on."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        other = await start(server, client, "import time; time.sleep(60)")
        assert await (await start(server, client, program)).wait() == code
        assert other.returncode is None
        client.close()

    run(work())


def test_ranks_end_with_their_agent_and_no_others(server: Server) -> None:
    """The kernel closes an agent's connection when it dies; its ranks' children end as well."""
    forking = "import time\nif os.fork(): print(os.getpid())\ntime.sleep(60)"

    async def work() -> None:
        one, other = server.client(), server.client()
        assert one is not None
        assert other is not None
        first, second = await start(server, one, forking), await start(server, other, forking)
        await until(lambda: len(server.log.read_text().split()) == 2)
        one.connection.close()
        await until(lambda: _group(first.pid) == [])
        assert len(_group(second.pid)) == 2
        other.close()
        await until(lambda: _group(second.pid) == [])

    run(work())


def _group(leader: int) -> list[int]:
    """Return the living processes of a group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == leader and state != "Z":
                members.append(int(entry.name))
    return members


def test_rank_whose_forking_process_is_killed_counts_as_killed(server: Server) -> None:
    """And no later rank of that agent is forked, so that it starts Python instead."""
    program = (
        "from hpckit.runtime.left_behind import die_with_parent\nimport time\n"
        "die_with_parent(); print('here', flush=True); time.sleep(60)"
    )

    async def work() -> None:
        client = server.client()
        assert client is not None
        rank = await start(server, client, program)
        mark = read_process_start_id(rank.pid)
        await until(lambda: server.log.read_text() == "here\n")
        os.kill(_parent(rank.pid), signal.SIGKILL)
        assert await rank.wait() == -signal.SIGKILL
        await until(lambda: read_process_start_id(rank.pid) != mark)
        assert await client.start_rank({}, 1, {}, []) is None
        assert await client.end_leftover_processes(0.0) == 0

    run(work())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_agents_keep_their_ranks_when_the_fork_server_is_killed(server: Server) -> None:
    """Each is served by a process of its own; later agents find no fork server."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        rank = await start(server, client, "import time; time.sleep(60)")
        server.process.kill()
        assert await (await start(server, client, "raise SystemExit(3)")).wait() == 3
        assert rank.returncode is None
        assert server.client() is None
        client.close()
        await until(lambda: read_process_start_id(rank.pid) is None)

    run(work())


def test_fork_server_leaves_when_neither_owner_nor_agent_is_left(server: Server) -> None:
    """Not before: an executor that is killed leaves its supervisors and agents at work."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        rank = await start(server, client, "import time; time.sleep(0.5)")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, server.owner)  # closes the pipe, as its owner's end does
        os.close(null)
        assert await rank.wait() == 0
        assert server.process.poll() is None
        server.log.unlink()
        client.close()

    run(work())
    assert server.process.wait(30) == 0
    assert not server.folder.exists()  # its owner may have been killed


def test_notices_end_neither_the_server_nor_hide_from_its_ranks(server: Server) -> None:
    """Slurm signals all processes of a job: ranks take a notice as a Python of their own does."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        rank = await start(server, client, "import time; time.sleep(60)")
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            server.process.send_signal(number)
        assert await (await start(server, client, "pass")).wait() == 0
        os.kill(rank.pid, signal.SIGTERM)
        assert await rank.wait() == -signal.SIGTERM
        client.close()

    run(work())


def test_ranks_draw_different_numbers(server: Server) -> None:
    """As different Pythons do; whoever wants the same ones sets a seed."""

    async def work() -> None:
        client = server.client()
        assert client is not None
        for _ in range(3):
            rank = await start(server, client, "import random; print(random.random())")
            assert await rank.wait() == 0
        client.close()

    run(work())
    assert len(set(server.log.read_text().split())) == 3


USES_GPU = """
import sys, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)
"""


def test_fork_server_whose_imports_use_a_gpu_forks_nothing() -> None:
    """No fork could use it: ranks are Pythons of their own then."""

    async def work(server: Server) -> None:
        client = server.client()
        assert client is None or await client.start_rank({}, 1, {}, []) is None

    with serving(USES_GPU + SERVE) as server:
        run(work(server))
        assert server.process.wait(30) == 0


def test_fork_server_of_another_job_is_not_asked(server: Server) -> None:
    """Its ranks would live in that job: `sbatch` exports variables into new ones."""

    async def work() -> None:
        assert server.client(SLURM_JOB_ID="17") is None
        assert connect_to_fork_server({}) is None
        assert connect_to_fork_server({FORK_SERVER: str(server.folder / "none")}) is None

    run(work())


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a namespace")
def test_fork_server_of_another_namespace_is_not_asked(server: Server) -> None:
    """Its ranks would see other files: a container or a private /tmp has a namespace of its own."""
    program = """
import asyncio, os
from hpckit.runtime.fork_server.client import connect_to_fork_server
async def look(): print(connect_to_fork_server(dict(os.environ)) is not None)
asyncio.run(look())
"""
    words = [sys.executable, "-c", program]
    for prefix, found in (([], "True\n"), (["unshare", "--mount"], "False\n")):
        done = run_to_end([*prefix, *words], env=server.environ, check=True)
        assert done.stdout == found, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_another_user_gets_no_rank(server: Server) -> None:
    """Even one who can open the socket: only its owner's processes are served."""
    server.folder.chmod(0o755)
    (server.folder / "fork").chmod(0o777)
    program = f"""
import os, socket
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect({str(server.folder / "fork")!r})
    print(len(line.recv(10)))
"""
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "0\n"  # it was hung up on


def test_what_is_no_order_ends_the_connection_only(server: Server) -> None:
    """A packet that is damaged, or has too few files."""

    async def work() -> None:
        for packet in (b"{", b"[]", b'{"number": 1}', b"x" * 70_000):
            client = server.client()
            assert client is not None
            await asyncio.get_running_loop().sock_sendall(client.connection, packet)
            await asyncio.wait_for(client._listening, 30)  # noqa: SLF001
        client = server.client()
        assert client is not None
        assert await (await start(server, client, "pass")).wait() == 0
        client.close()

    run(work())


def test_forked_rank_is_found_by_the_variables_it_was_given(server: Server, tmp_path: Path) -> None:
    """/proc shows the fork server's variables as its own: chaos and shell look further."""
    attempt = tmp_path / "attempt"
    attempt.mkdir()

    async def work() -> None:
        client = server.client()
        assert client is not None
        named = {"HPCKIT_RANK": "3", "HPCKIT_ATTEMPT_DIR": str(attempt)}
        rank = await start(server, client, "import time; time.sleep(60)", **named)
        query = ProcessQuery(target=FaultTarget.rank, attempt=attempt, rank=3)
        await until(lambda: find_processes(query) == (rank.pid,))
        client.close()

    run(work())


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "LD_PRELOAD", "TORCH_LOGS"])
def test_variables_that_are_read_once_count(name: str) -> None:
    """With another value, a rank begins in a Python of its own."""
    assert select_startup_variables({name: "1", "HOME": "/", "PYTHONPATH": "/x"}) == {name: "1"}


@pytest.mark.parametrize("name", ["RANK", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "PATH"])
def test_variables_that_are_read_later_do_not_count(name: str) -> None:
    """They may differ from rank to rank."""
    assert select_startup_variables({name: "1"}) == {}


@pytest.mark.parametrize(
    "entry", ["json.py", "json", "sitecustomize.py", "torch.cpython-311-x86_64-linux-gnu.so"]
)
def test_own_modules_that_a_fork_would_miss_are_seen(tmp_path: Path, entry: str) -> None:
    """What has the name of something imported already would not be imported any more."""
    for other in ("json.txt", "mine.py", ".git"):
        (tmp_path / other).touch()
    assert not shadows_imported_module([str(tmp_path)], ["json.decoder", "torch"])
    (tmp_path / entry).touch()
    assert shadows_imported_module([str(tmp_path)], ["json.decoder", "torch"])
    assert not shadows_imported_module([str(tmp_path / "none")], ["json"])


RANK = """
import sys
BEFORE = "torch" in sys.modules
{import_time}
import os, torch

def main(config, run):
    print("forked", BEFORE, "threads", torch.get_num_threads(), {expression})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPython:
    """What a user's module does and has, and what a rank of it prints."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    import_time: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    expression: str = "0"
    printed: str


@pytest.mark.training
@pytest.mark.parametrize(
    "case",
    [
        OwnPython(expression="os.environ['RANK']", printed="forked True threads 1 0"),
        pytest.param(
            OwnPython(settings={"env": {"OMP_NUM_THREADS": "2"}}, printed="forked False threads 2 0"),
            marks=thorough,
        ),
        OwnPython(
            import_time="import os; os.environ['OMP_NUM_THREADS'] = '2'", printed="forked False threads 2 0"
        ),
        OwnPython(
            import_time="import sympy",
            files={"sympy.py": "MINE = 5"},
            expression="sympy.MINE",
            printed="forked False threads 1 5",
        ),
    ],
    ids=["same", "other variables", "variables set by the user's module", "own module"],
)
def test_rank_that_a_fork_would_change_begins_in_a_python_of_its_own(
    workshop: Any, ranks: Any, case: OwnPython
) -> None:
    """Whatever would have changed what Python or torch read when they started."""
    workshop.project.mkdir()
    for name, text in case.files.items():
        (workshop.project / name).write_text(text)
    code = RANK.format(import_time=case.import_time, expression=case.expression)
    ended = workshop.attempt(code, **ranks(1, **case.settings))
    assert ended.code == 0, ended.output
    assert case.printed in ended.log(0)


@pytest.mark.training
def test_rank_can_be_told_not_to_be_forked(workshop: Any, ranks: Any) -> None:
    """`runtime.preload_torch=false`: the user's module is the first thing that is imported."""
    wanted = ranks(1)
    wanted["runtime"] = replace(wanted["runtime"], preload_torch=False)
    ended = workshop.attempt(RANK.format(import_time="", expression="0"), **wanted)
    assert ended.code == 0, ended.output
    assert "forked False" in ended.log(0)


AGAIN = """
import os, sys
BEFORE = "torch" in sys.modules

def main(config, run):
    print("forked", BEFORE, "by", os.getppid())
    for step in run.steps(2):
        if run.round == 0 and step == 1:
            os.kill(os.getpid(), 9)
"""


@pytest.mark.training
@pytest.mark.parametrize("server_of", ["no job", pytest.param("another job", marks=thorough)])
def test_agent_has_a_fork_server_of_its_own_for_all_rounds(
    workshop: Any, ranks: Any, monkeypatch: pytest.MonkeyPatch, server_of: str
) -> None:
    """Where its job has none: a rank that starts again does not import torch again."""
    with contextlib.ExitStack() as stack:
        monkeypatch.delenv(FORK_SERVER)
        if server_of == "another job":
            monkeypatch.setenv(FORK_SERVER, stack.enter_context(fork_server_of_job("4711")))
        again = Recovery(restarts={"signal": 1})
        ended = workshop.attempt(AGAIN, **ranks(1, recovery=again))
    assert ended.code == 0, ended.output
    first, second = (ended.log(0, round_=round_).splitlines()[0] for round_ in (0, 1))
    assert first == second
    assert first.startswith("forked True by ")
    assert not Path("/proc", first.split()[-1]).exists()
