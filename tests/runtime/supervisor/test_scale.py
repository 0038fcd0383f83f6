"""Many nodes: the real supervisor, its agents played by one process (`scripts/bench scale`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import run_to_end

BENCH = Path(__file__).parents[3] / "scripts" / "bench"


def scaled(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation with these options."""
    return run_to_end([sys.executable, str(BENCH), "scale", "--json", *words], check=True)


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """Return what came of 320 ranks, one of which failed, where each append takes 30 ms."""
    done = scaled("--nodes", "40", "--tasks-per-node", "8", "--append-ms", "30")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_scale_gives_the_exception_of_the_one_rank_that_failed(figures: dict[str, Any]) -> None:
    """The user's own exception is the cause, also where the record is written slowly."""
    assert figures["cause"] == "exception"
    assert figures["message"] == "ValueError: the user's own mistake"


@pytest.mark.slow
def test_scale_blames_no_node_for_records_that_were_not_read_yet(figures: dict[str, Any]) -> None:
    """An agent that has spoken is not lost because nobody has listened to it so far."""
    assert figures["blamed"] == 0


@pytest.mark.slow
def test_scale_keeps_the_record_of_a_failing_round_small(figures: dict[str, Any]) -> None:
    """Peers that fail of one rank are told together, not with a traceback each."""
    assert figures["record_mb"] < 0.1


@pytest.mark.slow
def test_scale_blames_no_node_where_many_are_slow_together() -> None:
    """Agents that are not scheduled for twice the node timeout, all at once, are not lost."""
    done = scaled("--nodes", "40", "--tasks-per-node", "1", "--starved-s", "12")
    figures = json.loads(done.stdout)
    assert (figures["cause"], figures["blamed"]) == ("exception", 0)
