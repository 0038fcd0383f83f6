"""What forks the ranks of tests starts again when something has ended it, and says how that was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_worlds import RankServer, RankServerLostError

WORLD = """
import os, pathlib, signal, time
if os.environ["RANK"] == "0" and not pathlib.Path("ended").exists():
    pathlib.Path("ended").touch()
    os.kill(os.getppid(), signal.SIGKILL)
print("rank", os.environ["RANK"])
"""


@pytest.fixture(name="server")
def start_server() -> Iterator[RankServer]:
    """Return a server of this test."""
    server = RankServer()
    yield server
    server.end()


@pytest.mark.training
def test_rank_server_that_was_ended_is_told_of_and_replaced(server: RankServer, tmp_path: Path) -> None:
    """A killed one would else fail all modules of worlds that come after."""
    program = tmp_path / "world.py"
    program.write_text(WORLD)
    with pytest.raises(RankServerLostError, match="has ended with -9"):
        server.run(program, 2, (), tmp_path)
    ends = server.run(program, 2, (), tmp_path)
    assert [(end.code, end.output) for end in ends] == [(0, "rank 0\n"), (0, "rank 1\n")]
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(60)
    with pytest.warns(UserWarning, match="has ended with -9; another one starts"):
        assert [end.code for end in server.run(program, 2, (), tmp_path)] == [0, 0]
