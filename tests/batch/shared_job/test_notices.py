"""Promises of hpckit.batch.shared_job.notices: a shared job hears of its end in any case."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from hpckit.batch.shared_job.notes import SharedJobNotes
from hpckit.batch.shared_job.notices import SharedJobNotices
from hpckit.record.claims import ClaimHolder
from hpckit.runtime.supervisor.deadline import Deadline

SILENT = "#!/bin/sh\nexit 1\n"


@dataclass(slots=True, kw_only=True)
class Heard:
    """What a job was told to do, in order."""

    words: list[str] = field(default_factory=list)

    def tell(self, number: signal.Signals) -> None:
        """Note a signal that is passed on."""
        self.words.append(number.name)

    def pass_on(self, number: signal.Signals) -> None:
        """Note a signal that is passed on, and ends nothing."""
        self.words.append(f"only {number.name}")

    def close(self) -> None:
        """Note that no further run is begun."""
        self.words.append("close")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node whose Slurm says nothing, but for what a test lets it say."""

    folder: Path

    def program(self, name: str, text: str) -> None:
        """Install one of Slurm's programs."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def notices(self, heard: Heard, *, left_s: float = 3600, requeues: bool = True) -> SharedJobNotices:
        """Return who hears for a job that has so long."""
        environ = {
            "PATH": os.environ["PATH"],
            # The controller's clock is not this node's.
            "SLURM_JOB_START_TIME": "1000000",
            "SLURM_JOB_END_TIME": str(int(1_000_000 + left_s)),
            "SLURM_JOB_PARTITION": "batch",
        }
        return SharedJobNotices(
            holder=ClaimHolder(job="7", restart_count=0, host="n1", pid=1, started="1"),
            bin_dir=str(self.folder),
            environ=environ,
            requeues=requeues,
            takes=timedelta(seconds=left_s),
            notes=SharedJobNotes(self.folder),
            deadline=Deadline(lead=timedelta()),
            tell=heard.tell,
            pass_on=heard.pass_on,
            close=heard.close,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with a Slurm that fails at everything."""
    made = Node(folder=tmp_path)
    for name in ("srun", "squeue", "scontrol", "sacct"):
        made.program(name, SILENT)
    return made


async def until(done: Callable[[], object]) -> None:
    """Wait for something that is bound to come; the test's own time limit guards."""
    while not done():  # noqa: ASYNC110  # files change, too, and set no event
        await asyncio.sleep(0.05)


async def keep_time(notices: SharedJobNotices, done: Callable[[], object]) -> None:
    """Keep the job's time until it is done, and end that as the job does."""
    task = asyncio.create_task(notices.watch_job_time_limit())
    await until(done)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_job_begins_no_run_and_then_leaves_before_its_limit(node: Node) -> None:
    """What a run takes comes first; it leaves while Slurm still queues the job again."""
    heard = Heard()

    async def use() -> None:
        notices = node.notices(heard, left_s=28)
        await keep_time(notices, lambda: "SIGUSR1" in heard.words)

    asyncio.run(use())
    assert heard.words == ["close", "SIGUSR1"]
    limits = SharedJobNotes(node.folder).wait_for_job_time_limits()
    assert limits.end_s is not None


@pytest.mark.parametrize(
    ("left_s", "number", "words"),
    [
        (3600, signal.SIGUSR1, ["only SIGUSR1"]),
        (100, signal.SIGUSR1, ["SIGUSR1"]),
        (3600, signal.SIGTERM, ["SIGTERM"]),
    ],
)
def test_warning_long_before_the_limit_ends_nothing(
    node: Node, left_s: float, number: signal.Signals, words: list[str]
) -> None:
    """Somebody wants the runs to save: they are told, and the job goes on beginning others."""
    heard = Heard()

    async def use() -> None:
        notices = node.notices(heard, left_s=left_s)
        notices.takes = timedelta()
        notices.install_signal_handlers()
        task = asyncio.create_task(notices.watch_job_time_limit())
        await until(lambda: notices.deadline.known)
        os.kill(os.getpid(), number)
        await until(lambda: heard.words)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(use())
    assert heard.words == words


def test_preemption_that_only_steps_are_told_of_is_heard(node: Node) -> None:
    """The step ends as its task did; the job then waits for its own signal, to be requeued."""
    node.program("srun", "#!/bin/sh\nexit 143\n")
    heard = Heard()

    async def use() -> bool:
        notices = node.notices(heard)
        await keep_time(notices, lambda: heard.words)
        waiting = asyncio.create_task(notices.wait_for_announced_preemption())
        _, late = await asyncio.wait([waiting], timeout=0.2)
        notices.install_signal_handlers()
        os.kill(os.getpid(), signal.SIGTERM)
        await waiting
        return bool(late)

    assert asyncio.run(use())
    assert heard.words == ["SIGTERM", "SIGTERM"]


def test_step_that_cannot_be_had_is_no_notice(node: Node) -> None:
    """A busy controller refuses it: the job goes on, and hears its own signals."""
    heard = Heard()

    async def use() -> None:
        notices = node.notices(heard)
        notices.install_signal_handlers()
        task = asyncio.create_task(notices.watch_job_time_limit())
        await until((node.folder / "limits.json").exists)
        await asyncio.sleep(0.5)
        assert heard.words == []
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: heard.words)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await notices.wait_for_announced_preemption()

    asyncio.run(use())
    assert heard.words == ["SIGINT"]
