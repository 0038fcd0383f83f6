"""Bad nodes where nothing else is to be had, and histories of nodes that nobody should write."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_world import Said, verb_said

from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.nodes.incident import IncidentKind, NodeIncident
from hpckit.model.states import RoundAction
from hpckit.planning.nodes.standing import incidents_of, node_standings, nodes_to_avoid
from hpckit.planning.recovery.loss import gone_before, missing_agents
from hpckit.record.nodes.history import append_incident, history_folder

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
ODD = [
    {"node": "n1", "message": "bad \x1b[31mred \u202e \n newline \r"},
    {"node": "n\x1b]0;x\x072"},
    {"node": "n3,n4"},
    {"node": "--foo"},
    {"node": ""},
    {"node": "n5", "at": "2026-11-25T00:00:00"},
    {"node": "n6", "at": "9999-12-31T23:59:59Z"},
    {"node": "n7", "at": "0001-01-01T00:00:00+14:00"},
    {"node": "n8", "kind": "nosuch"},
]
RAW = ['{"node":5}', "null", "[]", '"x"', "0" * 200_000, "[" * 100_000, 'torn{"node": "n9"']


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a folder whose history has all kinds of odd lines."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    good = NodeIncident(node="n1", at=NOW, kind=IncidentKind.unhealthy, run="x-1.0", message="ECC")
    append_incident(outputs, good)
    usual = {"at": "2026-11-25T11:00:00Z", "kind": "unhealthy", "run": "x-1.0", "message": "x"}
    lines = [json.dumps({**usual, **one}) for one in ODD] + RAW
    with (history_folder(outputs) / "x-1.0.jsonl").open("a") as file:
        file.write("\n".join(lines))
    return tmp_path


def say(*words: str, folder: Path) -> Said:
    """Say `hpckit nodes` without a Slurm."""
    return verb_said("nodes", *words, folder=folder, environ={"PATH": "/bin"}, now=lambda: NOW)


def test_odd_lines_of_a_history_are_left_out(odd: Path) -> None:
    """Neither a traceback nor a mark of theirs in the terminal; what is sound is shown."""
    for words in ([], ["n1"], ["--json"]):
        said = say(*words, folder=odd)
        assert said.code == 0
        assert "n1" in said.out
        assert "\x1b]" not in said.out
        assert "\u202e" not in said.out


@pytest.mark.parametrize("at", ["2026-11-25T00:00:00", "2099-11-25T00:00:00", "never", None, 5])
def test_odd_lines_of_what_was_forgotten_forget_nothing(odd: Path, at: object) -> None:
    """A time without a zone is none."""
    record = json.dumps({"node": "n1", "at": at})
    (history_folder(odd / "outputs") / "forgotten.jsonl").write_text(f"{record}\n")
    assert "n1" in say(folder=odd).out


def test_place_of_what_was_forgotten_may_be_anything(odd: Path) -> None:
    """A pipe, a link to a device: read as nothing, and a wish to forget is refused or works."""
    file = history_folder(odd / "outputs") / "forgotten.jsonl"
    os.mkfifo(file)
    assert "n1" in say(folder=odd).out
    file.unlink()
    file.symlink_to("/dev/full")
    assert "n1" in say(folder=odd).out


def _blamed(failure: Failure) -> list[NodeIncident]:
    ended = events.RoundEnded(
        at=NOW, round=0, first_step=None, step=None, action=RoundAction.end, failure=failure
    )
    return list(incidents_of(ended, "x-1.0"))


@pytest.mark.parametrize("late", [501, 900, 999])
def test_one_slow_start_leaves_no_healthy_node_out(late: int) -> None:
    """The file system answers one node in time: the others are as good as that one."""
    names = [f"g{place:03}" for place in range(1000)]
    for failure in (
        missing_agents(names, set(names[late:]), wanted=1000, why="waited 600 s for the agents"),
        gone_before(names, names[late:]),
    ):
        found = _blamed(failure)
        assert not found
        assert not nodes_to_avoid(node_standings(found, NOW), names, ())


def test_launch_warns_of_a_history_that_is_not_used(tmp_path: Path, fake_slurm: Any) -> None:
    """It leaves nothing out then, and says what to do."""
    (tmp_path / "outputs").mkdir()
    incident = NodeIncident(node="n1", at=NOW, kind=IncidentKind.unhealthy, run="x-1.0")
    append_incident(tmp_path / "outputs", incident)
    words = ("launch", "cluster=slurm", "code.snapshot=false", "--dry-run", "--", "true")

    def launch() -> Said:
        environ = {**fake_slurm.environ, "HOME": str(tmp_path)}
        return verb_said(*words, folder=tmp_path, environ=environ, now=lambda: NOW)

    fine = launch()
    assert "--exclude=n1" in fine.out, fine.err
    history_folder(tmp_path / "outputs").chmod(0o770)
    warned = launch()
    assert "--exclude" not in warned.out
    assert warned.err.count("others may write to it; chmod go-w") == 1
