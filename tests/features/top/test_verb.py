"""`hpckit top`: one look as text, lines without a terminal, a clear word without its extra."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_world import Terminal, make_context
from pseudo_terminal import Sitting

from hpckit.errors import ForeignError, UsageError
from hpckit.features.top import verb as top
from hpckit.model.states import RunState
from hpckit.record.launches import read_launch_events
from hpckit.record.lookup import find_launch_of_any_owner

EVIL = "[red]loss[/red]\x1b[2J"


@pytest.fixture(name="launch")
def launch_fixture(desk: Any, writer: Any) -> Any:
    """Return a launch of two runs with ends and metrics."""
    launch = desk.freeze(sweep=[("lr=0.1",), ("lr=0.2",)])
    for index in (0, 1):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        for step in range(20):
            attempt.metrics(step, **{EVIL: 1.0 / (step + 1 + index)})
        attempt.log(0, "hello [blink]you[/blink]\n\x1b]0;title\x07\n")
        attempt.complete()
    return launch


@pytest.mark.parametrize("terminal", [False, True])
def test_once_prints_runs_and_one_of_them_in_detail(launch: Any, desk: Any, *, terminal: bool) -> None:
    """States, metrics, the curve, the log, the events; nothing in it moves a cursor."""
    said = desk.say("top", "--once", terminal=terminal)
    assert said.code == 0
    bare = said.out.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[32m", "")
    assert "\x1b" not in bare
    for words in (launch.id, "completed", "2 runs: 2 completed", "[red]loss[/red]\\x1b[2J 0.05"):
        assert words in bare
    assert "hello [blink]you[/blink]" in bare
    assert "\\x1b]0;title\\x07" in bare
    assert "attempt ended: completed" in bare
    assert any("\u2800" < one <= "\u28ff" for one in bare)


def test_once_of_a_run_shows_that_run(desk: Any, launch: Any) -> None:
    """The other one is not in the table."""
    out = desk.say("top", f"{launch.id}.1", "--once").out
    assert "1 run: 1 completed" in out
    assert ".1 completed" in out


def test_without_a_terminal_it_prints_lines_as_status_does(desk: Any, launch: Any) -> None:
    """No escape codes; it ends as all runs have."""
    out = desk.say("top", launch.id).out
    assert out == desk.say("status", launch.id, "--watch").out
    assert out.startswith("2 runs: 2 completed")


def test_without_textual_one_error_names_the_extra(
    desk: Any, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what needs nothing."""
    assert desk.say("top", launch.id).code == 0
    for name in [module for module in sys.modules if module.split(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in ("app", "table"):
        monkeypatch.delitem(sys.modules, f"hpckit.features.top.{name}", raising=False)
    monkeypatch.setattr(top, "_is_interactive", lambda _: True)
    with pytest.raises(UsageError, match="hpckit top needs textual") as caught:
        desk.say("top")
    assert "pip install '.[top]' in hpckit's checkout" in caught.value.hint
    assert desk.say("top", "--once").code == 0


def test_cancel_in_the_application_is_that_of_the_verb(desk: Any, writer: Any) -> None:
    """A running run is asked to end, one that is over is not, another user's is refused."""
    launch = desk.freeze(sweep=[("lr=0.1",), ("lr=0.2",)])
    gone = writer(launch=launch, index=1)
    gone.start()
    gone.complete()
    context = make_context(
        desk.folder, stdout=Terminal(), stderr=Terminal(), now=lambda: launch.created_at, sleep=lambda _: None
    )
    found = find_launch_of_any_owner(launch.id, desk.folder, cwd=desk.folder).launch
    assert top.cancel_run(found, context, 1) == f"{launch.id}.1 is over"
    assert top.cancel_run(found, context, 0) == f"cancelling {launch.id}.0"
    (asked,) = read_launch_events(launch)
    assert getattr(asked, "runs", None) == (0,)
    assert RunState.cancelled.value in desk.say("status", f"{launch.id}.0").out


def test_launch_of_others_is_shown_and_not_cancelled(
    desk: Any, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `hpckit cancel`."""
    selection = find_launch_of_any_owner(launch.id, desk.folder, cwd=desk.folder)
    stranger = type("Stranger", (), {"reason": "it belongs to mallory", "owner": "mallory"})()
    monkeypatch.setattr(type(selection.launch), "stranger", stranger, raising=False)
    with pytest.raises((ForeignError, UsageError), match="is not yours: it belongs to mallory"):
        top.cancel_run(selection.launch, None, 0)  # type: ignore[arg-type]


@pytest.mark.training
def test_person_at_a_terminal_sees_runs_and_leaves(desk: Any, launch: Any, tmp_path: Path) -> None:
    """On a terminal of 80 by 24: drawn, keys work, `q` restores the screen and exits with 0."""
    words = ["top", launch.id, "--output-dir", str(desk.folder)]
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(desk.folder)}
    with Sitting(words=words, cwd=tmp_path, environ=environ) as sitting:
        sitting.until("completed")
        sitting.until("Quit")
        sitting.press("e")
        sitting.until("attempt ended")
        sitting.press("q")
        assert sitting.exit_code() == 0
    assert "\x1b[?1049h" in sitting.said
    assert "\x1b[?1049l" in sitting.said, "the screen before is back"
    assert "Traceback" not in sitting.said
    assert "\x1b]0;title" not in sitting.said, "a log does not name the window"
