"""Promises of processes that are forked ahead: their own environment, their own end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from hpckit.runtime.agent.prefork import prefork_agent
from hpckit.runtime.forked import Forked, fork_program

PATH = {"PATH": os.environ["PATH"]}
WHILE_PARENT_LIVES = "echo $$ > began; while kill -0 $PPID; do sleep 0.1; done 2> /dev/null"


def run(script: str, environ: dict[str, str] = PATH, cpus: tuple[int, ...] = ()) -> Forked:
    """Fork a process that runs a shell script, as one that imported a little would."""
    return fork_program(subprocess.call, ("sh", "-c", script), environ, cpus=cpus)


def parent_of(process: Forked) -> int:
    """Return the pid of the process that forked it."""
    stat = Path(f"/proc/{process.process.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


def test_program_gets_its_words_its_environment_and_its_cpus(tmp_path: Path) -> None:
    """Nothing of the caller's environment is left; the exit code comes back."""
    cpu = min(os.sched_getaffinity(0))
    script = "env > env; grep Cpus_allowed_list /proc/self/status > cpus; exit 7"
    assert asyncio.run(run(script, {**PATH, "OURS": "a b"}, (cpu,)).wait()) == 7
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "OURS"}
    assert (tmp_path / "cpus").read_text().split() == ["Cpus_allowed_list:", str(cpu)]


def test_signals_end_the_one_they_are_sent_to(tmp_path: Path) -> None:
    """What the whole job is told ends a process as ever, and not the one that forks."""

    async def told() -> int:
        process = run(WHILE_PARENT_LIVES)
        until((tmp_path / "began").exists)
        forks = parent_of(process)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            os.kill(forks, number)
        process.send_signal(signal.SIGTERM)
        ends = await asyncio.gather(process.wait(), process.wait())
        with pytest.raises(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        after = run("sleep 0.2; exit 3")
        assert parent_of(after) == forks
        assert await after.wait() == 3
        assert set(ends) == {ends[0]}
        return ends[0]

    assert asyncio.run(told()) == -signal.SIGTERM


def test_process_is_awaited_where_the_one_that_forks_was_killed(tmp_path: Path) -> None:
    """Its end is seen all the same, and the next one can be started."""

    async def orphaned() -> int:
        process = run("touch began; while [ ! -e go ]; do sleep 0.1; done; touch ended")
        until((tmp_path / "began").exists)
        os.kill(parent_of(process), signal.SIGKILL)
        waiting = asyncio.ensure_future(process.wait())
        done, _ = await asyncio.wait({waiting}, timeout=1.5)
        assert not done
        (tmp_path / "go").touch()
        return await waiting

    assert asyncio.run(orphaned()) == 255
    assert (tmp_path / "ended").exists()
    assert asyncio.run(run("exit 4").wait()) == 4


def test_agent_in_waiting_is_an_agent_once_told(tmp_path: Path) -> None:
    """It writes to its log, in a session of its own, and leaves with an agent's exit code."""

    async def told() -> tuple[int, int]:
        with prefork_agent() as begin:
            words = (str(tmp_path / "nothing"), "0", "1")
            process = begin(words, {**PATH, "SLURMD_NODENAME": "n7"}, tmp_path / "log")
            assert isinstance(process, Forked)
            return await process.wait(), process.process.pid or 0

    code, _ = asyncio.run(told())
    assert code == 66
    assert "node n7 cannot read its frozen folder" in (tmp_path / "log").read_text()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_agent_in_waiting_leaves_where_it_is_told_nothing() -> None:
    """Nobody has to end it, and notices to the whole job do not."""
    others = {process.pid for process in multiprocessing.active_children()}
    with prefork_agent() as _:
        (agent,) = (child for child in multiprocessing.active_children() if child.pid not in others)
        assert agent.pid is not None
    agent.join(60)
    assert agent.exitcode == 0
