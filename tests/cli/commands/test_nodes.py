"""Promises of `hpckit nodes`."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import Said, verb_said

from hpckit.model.nodes import IncidentKind, NodeIncident
from hpckit.record.node_history import append_node_incident, node_history_folder

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def say(*words: str, folder: Path, **environ: str) -> Said:
    """Say `hpckit nodes` where there is no Slurm, unless it is given."""
    (folder / "outputs").mkdir(exist_ok=True)
    given = {"PATH": "/usr/bin:/bin", **environ}
    return verb_said("nodes", *words, folder=folder, environ=given, now=lambda: NOW)


def happen(folder: Path, node: str, ago: timedelta = timedelta(), message: str = "ECC") -> None:
    """Let something happen on a node."""
    (folder / "outputs").mkdir(exist_ok=True)
    one = NodeIncident(node=node, at=NOW - ago, kind=IncidentKind.unhealthy, run="a-1.0", message=message)
    append_node_incident(folder / "outputs", one)


def test_nodes_says_which_are_left_out_and_why_others_are_used(tmp_path: Path, fake_slurm: Any) -> None:
    """Of four nodes one may be left out: the worst."""
    happen(tmp_path, "n1")
    happen(tmp_path, "n2", timedelta(hours=20))
    happen(tmp_path, "n77")
    environ = {name: fake_slurm.environ[name] for name in ("PATH", "FAKE_SLURM_DIR")}
    said = say(folder=tmp_path, **environ).out
    assert "leave it out until" in said
    assert "use it: launches leave out 1 of 4" in said
    assert "use it: Slurm knows no such node" in said
    assert "3 nodes with incidents in 30 days, 1 left out of new launches" in said
    document = json.loads(say("--json", folder=tmp_path, **environ).out)
    assert {one["node"]: one["left_out"] for one in document["nodes"]} == {
        "n1": True,
        "n2": False,
        "n77": False,
    }
    alone = say("n2", folder=tmp_path, **environ).out
    assert "n2: launches use it: launches leave out 1 of 4" in alone


def test_nodes_without_slurm_promises_nothing(tmp_path: Path) -> None:
    """How many are left out depends on the cluster."""
    happen(tmp_path, "n1")
    said = say(folder=tmp_path)
    assert "may leave it out until" in said.out
    assert "1 may be left out: at most a tenth" in said.out
    assert json.loads(say("--json", folder=tmp_path).out)["nodes"][0]["left_out"] is None


def test_incidents_of_one_loop_are_one_line(tmp_path: Path) -> None:
    """A run that finds the same on each attempt says it once, with a count."""
    for count in range(40):
        happen(tmp_path, "n1", timedelta(seconds=40 - count), f"{count + 1} memory errors")
    happen(tmp_path, "n1", timedelta(days=1), "GPU 1 is lost")
    lines = [line for line in say("n1", folder=tmp_path).out.splitlines() if "a-1.0" in line]
    assert len(lines) == 2
    assert lines[1].split()[2] == "40"
    assert "40 memory errors" in lines[1]


def test_message_of_several_lines_is_one_cell(tmp_path: Path) -> None:
    """Line ends of a log are blanks in a table; --json has them."""
    happen(tmp_path, "n1", message="rank 0 ended; it printed last:\nbus error\n")
    for words in ((), ("n1",)):
        assert "it printed last: bus error" in say(*words, folder=tmp_path).out
    assert "last:\\nbus error" in say("--json", folder=tmp_path).out


def test_history_that_is_not_used_is_told(tmp_path: Path) -> None:
    """Nobody wonders why a bad node is used again."""
    happen(tmp_path, "n1")
    node_history_folder(tmp_path / "outputs").chmod(0o770)
    said = say(folder=tmp_path)
    assert said.code == 0
    assert "nothing has happened" in said.out
    assert said.err.count("others may write to it; chmod go-w") == 1


ODD = [
    {"node": "n1", "message": "bad \x1b[31mred \u202e \n newline \r"},
    {"node": "n\x1b]0;x\x072"},
    {"node": "n3,n4"},
    {"node": "--foo"},
    {"node": ""},
    {"node": "n5", "at": "2026-01-10T00:00:00"},
    {"node": "n6", "at": "9999-12-31T23:59:59Z"},
    {"node": "n7", "at": "0001-01-01T00:00:00+14:00"},
    {"node": "n8", "kind": "nosuch"},
]


RAW = ['{"node":5}', "null", "[]", '"x"', "0" * 200_000, "[" * 100_000, 'torn{"node": "n9"']


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a folder whose history has all kinds of odd lines."""
    happen(tmp_path, "n1")
    usual = {"at": "2026-01-10T11:00:00Z", "kind": "unhealthy", "run": "a-1.0", "message": "x"}
    lines = [json.dumps({**usual, **one}) for one in ODD] + RAW
    with (node_history_folder(tmp_path / "outputs") / "a-1.0.jsonl").open("a") as file:
        file.write("\n".join(lines))
    return tmp_path


def test_odd_lines_of_a_history_are_left_out(odd: Path) -> None:
    """Neither a traceback nor a mark of theirs in the terminal; what is sound is shown."""
    for words in ([], ["n1"], ["--json"]):
        said = say(*words, folder=odd)
        assert said.code == 0
        assert "n1" in said.out
        assert "\x1b]" not in said.out
        assert "\u202e" not in said.out


@pytest.mark.parametrize("at", ["2026-01-10T00:00:00", "2099-11-25T00:00:00", "never", None, 5])
def test_odd_lines_of_what_was_forgotten_forget_nothing(odd: Path, at: object) -> None:
    """A time without a zone is none."""
    record = json.dumps({"node": "n1", "at": at})
    (node_history_folder(odd / "outputs") / "forgotten.jsonl").write_text(f"{record}\n")
    assert "n1" in say(folder=odd).out


def test_place_of_what_was_forgotten_may_be_anything(odd: Path) -> None:
    """A pipe, a link to a device: read as nothing, and a wish to forget is refused or works."""
    file = node_history_folder(odd / "outputs") / "forgotten.jsonl"
    os.mkfifo(file)
    assert "n1" in say(folder=odd).out
    file.unlink()
    file.symlink_to("/dev/full")
    assert "n1" in say(folder=odd).out


def test_launch_warns_of_a_history_that_is_not_used(tmp_path: Path, fake_slurm: Any) -> None:
    """It leaves nothing out then, and says what to do."""
    happen(tmp_path, "n1")
    words = ("launch", "cluster=slurm", "code.snapshot=false", "--dry-run", "--", "true")

    def launch() -> Said:
        environ = {**fake_slurm.environ, "HOME": str(tmp_path)}
        return verb_said(*words, folder=tmp_path, environ=environ, now=lambda: NOW)

    fine = launch()
    assert "--exclude=n1" in fine.out, fine.err
    node_history_folder(tmp_path / "outputs").chmod(0o770)
    warned = launch()
    assert "--exclude" not in warned.out
    assert warned.err.count("others may write to it; chmod go-w") == 1
