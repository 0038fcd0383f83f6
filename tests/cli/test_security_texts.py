"""Promises of docs/explanations/security.md about texts: of users, Slurm, files, other programs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from cli.shared_place import BY_ROOT, NEWEST, Place, mine, place, world

__all__ = ["mine", "place", "world"]

pytestmark = BY_ROOT

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\u202egnp.exe"
"""What sets a title, clears a screen, and turns a name around, where a terminal obeys it."""

SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x08\\u202egnp.exe"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile("\x1b\\[[0-9;]*[mKAh]|\x1b\\[\\?25[lh]|\r")
"""What rich itself writes to a terminal."""


@pytest.fixture
def hostile(place: Place, mine: Path) -> Path:
    """Return a failed launch of the caller's, all texts of which are hostile."""
    folder = place.outputs / "hostile-20260101-000000-ab12"
    shutil.copytree(mine, folder)
    record = json.loads((folder / "launch.json").read_text().replace(mine.name, folder.name))
    record["name"] = HOSTILE
    record["runs"][0]["overrides"] = [f"a={HOSTILE}"]
    (folder / "launch.json").write_text(json.dumps(record))
    attempt = folder / "runs" / "00000" / "attempts" / "001"
    (attempt / "metrics.last.json").unlink(missing_ok=True)
    (attempt / "metrics.jsonl").write_text(json.dumps({"step": 1, HOSTILE: HOSTILE}) + "\n")
    events = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    failure = {"cause": "exception", "message": HOSTILE * 200, "traceback": f"{HOSTILE}\n{HOSTILE}"}
    for event in events:
        if event["event"] == "attempt_ended":
            event |= {"state": "failed", "exit_code": 1, "failure": failure}
    (attempt / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.parametrize("reader", ["lines", "terminal"])
@pytest.mark.parametrize(
    "words",
    [("status",), ("status", "--watch"), ("results",), ("results", "--csv"), ("rerun", "--exact")],
    ids=" ".join,
)
def test_security_shows_control_characters_instead_of_obeying_them(
    place: Place, hostile: Path, words: tuple[str, ...], reader: str
) -> None:
    """Nothing that users, Slurm or files say reaches a terminal as a control character."""
    terminal = reader == "terminal"
    said = place.hpckit(words[0], str(hostile), *words[1:], terminal=terminal)
    text = COLOUR.sub("", said.stdout) if terminal else said.stdout
    assert OBEYED.findall(text + said.stderr) == []
    if words[0] == "status" and not terminal:
        assert SHOWN in text or len(words) > 1


def test_security_shows_control_characters_of_listed_launches_and_errors(place: Place, hostile: Path) -> None:
    """The list of launches and every error are as harmless."""
    for words in (("ls",), ("ls", "--sort", "name"), ("status", HOSTILE), ("cancel", "\x1b[2J")):
        said = place.hpckit(*words)
        assert OBEYED.findall(said.stdout + said.stderr) == []
    assert hostile.exists()


def test_security_json_holds_such_texts_whole_and_harmless(place: Place, hostile: Path) -> None:
    """`--json` says exactly what was said, in JSON's own escapes; messages are not cut."""
    text = place.hpckit("status", str(hostile), "--json").stdout
    assert OBEYED.findall(text) == []
    (run,) = json.loads(text)["runs"]
    assert run["failure"]["message"] == HOSTILE * 200
    assert run["metrics"] == {HOSTILE: HOSTILE}


def test_security_cuts_long_messages_for_people(place: Place, hostile: Path) -> None:
    """A message of many thousand characters does not fill the screen."""
    shown = place.hpckit("status", str(hostile)).stdout
    assert max(map(len, shown.splitlines())) < 3000


def test_security_logs_of_a_stranger_are_harmless(place: Place, mine: Path) -> None:
    """What somebody else's program printed is escaped; what one's own did is passed on."""
    for folder in (place.plant(mine), mine):
        (log,) = folder.rglob("rank-00000.log")
        log.write_text(f"{HOSTILE}\n")
    assert place.hpckit("logs", str(place.outputs / NEWEST)).stdout == f"{SHOWN}\n"
    assert place.hpckit("logs", str(mine)).stdout == f"{HOSTILE}\n"
