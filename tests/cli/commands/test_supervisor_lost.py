"""Promises of `hpckit supervisor-lost`: a run is started again if its supervisor is gone."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_world import NOW, make_context

from hpckit.cli.commands import hidden
from hpckit.errors import ChannelError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.model.states import RequeueOutcome, RoundAction, RunState
from hpckit.record.launches import Launch
from hpckit.record.layout import RunPaths
from hpckit.record.store import make_private_folder, write_json, write_text_atomically
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.listen import open_listening_socket

SECRET = tcp.new_secret()
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/calls"
case "$(basename "$0") $*" in
    squeue*JobArrayID*) echo "7|RUNNING|n[1-2]|0|0|None|" ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bereaved:
    """The agent of n2, whose supervisor was on n1; Slurm calls their job 7."""

    launch: Launch
    programs: Path

    @property
    def run(self) -> RunPaths:
        """The folder of the run."""
        return self.launch.paths.run(0)

    def allow(self, restarts: int) -> None:
        """Let the run be started again so often after losing its supervisor."""
        frozen = self.launch.paths.configs_file_of_run(0)
        config = json.loads(frozen.read_text())
        config["recovery"]["restarts"] = {"launcher_lost": restarts}
        frozen.write_text(json.dumps(config) + "\n")

    def act(self) -> list[str]:
        """Run the verb; returns what it did to the job."""
        context = make_context(
            self.programs,
            {
                "PATH": f"{self.programs}:/usr/bin:/bin",
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURMD_NODENAME": "n2",
            },
            now=lambda: NOW,
            sleep=lambda _: None,
        )
        given = argparse.Namespace(folder=self.launch.folder, job=0, run=0, attempt=1)
        given.words = ("supervisor-lost",)
        assert hidden.run(given, context) == 0
        calls = self.programs / "calls"
        asked = calls.read_text().splitlines() if calls.exists() else []
        return [call for call in asked if call.startswith(("scontrol", "scancel"))]


@pytest.fixture
def bereaved(desk: Any, writer: Any, tmp_path: Path) -> Bereaved:
    """Return such an agent; its run may be started again once."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "scontrol", "scancel", "sacct"):
        write_text_atomically(programs / name, PROGRAM)
        (programs / name).chmod(0o755)
    launch = desk.freeze(kind=ClusterKind.slurm)
    writer(launch=launch).start(job="7", process=("n1.site", 1, "1"))
    made = Bereaved(launch=launch, programs=programs)
    made.allow(1)
    return made


def test_run_without_supervisor_is_started_anew_without_the_node_of_its_supervisor(
    bereaved: Bereaved,
) -> None:
    """Once; and the lost node goes by Slurm's name for it, not by the host's own."""
    calls = bereaved.act()
    assert [call for call in calls if "requeue" in call] == ["scontrol requeue 7"]
    assert not [call for call in calls if call.startswith("scancel")]
    assert [call for call in calls if "ExcNodeList=n1" in call]


def test_run_without_supervisor_without_restarts_gives_its_nodes_back(bereaved: Bereaved) -> None:
    """Its policy has no restart for a lost supervisor: the job is cancelled, not requeued."""
    bereaved.allow(0)
    assert bereaved.act() == ["scancel 7"]


def test_run_is_left_alone_where_its_supervisor_left_a_final_event(bereaved: Bereaved, writer: Any) -> None:
    """An attempt that has ended by itself is nobody's orphan."""
    writer(launch=bereaved.launch).complete()
    assert bereaved.act() == []


def test_run_is_left_alone_by_a_node_that_was_given_up(bereaved: Bereaved, writer: Any) -> None:
    """A node that was cut off comes back: the run went on without it."""
    lost = events.NodeLost(at=NOW, node="n2", silent_s=6.0)
    writer(launch=bereaved.launch).tell(lost)
    assert bereaved.act() == []


def test_new_attempt_that_a_cut_off_supervisor_wanted_is_asked_for(bereaved: Bereaved, writer: Any) -> None:
    """It gave up everybody else, and reaches Slurm no more; its decision counts, once."""
    bereaved.allow(0)
    writer(launch=bereaved.launch).tell(
        events.NodeLost(at=NOW, node="n2", silent_s=6.0),
        events.RoundEnded(at=NOW, round=0, first_step=0, step=9, action=RoundAction.new_attempt),
        events.AttemptEnded(at=NOW, state=RunState.interrupted, exit_code=1),
    )
    assert "scontrol requeue 7" in bereaved.act()


def test_new_attempt_that_the_supervisor_has_asked_for_is_not_asked_for_again(
    bereaved: Bereaved, writer: Any
) -> None:
    """Whatever came of it is the supervisor's affair."""
    writer(launch=bereaved.launch).tell(
        events.RoundEnded(at=NOW, round=0, first_step=0, step=9, action=RoundAction.new_attempt),
        events.AttemptEnded(at=NOW, state=RunState.interrupted, exit_code=1),
        events.RequeueAsked(at=NOW, outcome=RequeueOutcome.requeued),
    )
    assert bereaved.act() == []


def test_run_is_left_alone_where_a_later_attempt_has_begun(bereaved: Bereaved) -> None:
    """Somebody else was quicker."""
    make_private_folder(bereaved.run.attempt(2).folder)
    assert bereaved.act() == []


@contextlib.contextmanager
def supervisor(bereaved: Bereaved, secret: str) -> Iterator[None]:
    """Answer callers as the supervisor of the attempt does, in another thread."""
    loop = asyncio.new_event_loop()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ChannelError, OSError):
            await tcp.authenticate_caller(reader, writer, secret)
        writer.close()

    with open_listening_socket("127.0.0.1") as bound:
        publish(bereaved, bound.getsockname()[1])
        server = loop.run_until_complete(asyncio.start_server(welcome, sock=bound))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(server.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def publish(bereaved: Bereaved, port: int) -> None:
    """Say where the supervisor listens, or has listened."""
    paths = bereaved.run.attempt(1)
    write_json(paths.address, {"hosts": ["127.0.0.1"], "port": port})
    write_text_atomically(paths.secret, SECRET + "\n")


def test_run_is_left_alone_while_its_supervisor_answers(bereaved: Bereaved) -> None:
    """A connection may break without an end of what is behind it."""
    with supervisor(bereaved, SECRET):
        assert bereaved.act() == []
    assert "scontrol requeue 7" in bereaved.act()


def test_run_of_a_frozen_supervisor_is_started_anew(
    bereaved: Bereaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel accepts connections for a process that is stopped; nothing is said on them."""
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.5)
    with open_listening_socket("127.0.0.1") as bound:
        publish(bereaved, bound.getsockname()[1])
        assert "scontrol requeue 7" in bereaved.act()


def test_run_is_started_anew_where_another_has_taken_the_port(bereaved: Bereaved) -> None:
    """Who listens there and does not know the attempt's secret is not its supervisor."""
    with supervisor(bereaved, tcp.new_secret()):
        assert "scontrol requeue 7" in bereaved.act()
