"""Ctrl-C at a real terminal leaves a view, and never the training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pseudo_terminal import Sitting
from tiers import thorough

pytestmark = pytest.mark.slow

LAUNCH = ("experiment=command", "command=sleep 600", "code.snapshot=false", "cluster=local")


@pytest.fixture
def leaving(shell: Any) -> Iterator[Any]:
    """Return who looks at what is launched and presses Ctrl-C; in the end all is cancelled."""

    def leave(text: str, *words: str) -> Sitting:
        with Sitting(words=words, cwd=shell.cwd, environ=shell.environ) as person:
            person.until(text)
            person.press("\x03")
            assert person.exit_code() == 130, person.said
        return person

    yield leave
    for folder in shell.outputs:
        shell("cancel", str(folder))


def states(shell: Any) -> list[str]:
    """Return the states of the latest launch."""
    return [run["state"] for run in json.loads(shell("status", "--json").out)["runs"]]


def test_ctrl_c_in_launch_wait_lets_local_runs_go_on(shell: Any, leaving: Any) -> None:
    """The last line says that runs go on, how to look again and how to cancel; both work."""
    person = leaving("running", "launch", "--wait", "-m", *LAUNCH, "seed=1,2")
    (folder,) = shell.outputs
    said = person.said.split("hpckit: ")[-1]
    assert "the runs continue" in said
    assert f"hpckit cancel {folder.name}" in " ".join(said.split())
    assert "Traceback" not in person.said
    assert "running" in states(shell)
    assert "cancel_requested" not in [event.kind for event in shell.events(folder)]
    assert shell("cancel", folder.name).code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("running", ("status", "--watch")),
        ("running", ("watch",)),
        ("ready", ("logs", "--follow")),
        pytest.param("running", ("resume", "--cancelled", "--wait"), marks=thorough),
    ],
)
def test_ctrl_c_in_any_other_view_lets_runs_go_on(
    shell: Any, leaving: Any, text: str, words: tuple[str, ...]
) -> None:
    """`status --watch`, `watch`, `logs --follow` and `resume --wait`: 130; the runs continue."""
    command = "command=[sh,-c,'echo ready; sleep 600']"
    assert shell("launch", *LAUNCH, command).code == 0
    if words[0] == "resume":
        assert shell("cancel").code == 0
        assert shell("watch").code == 1
    person = leaving(text, *words)
    assert "the runs continue" in person.said
    assert "Traceback" not in person.said
    assert states(shell) == ["running"]
