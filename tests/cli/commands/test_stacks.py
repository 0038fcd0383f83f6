"""`hpckit stacks`, up to where a supervisor would answer."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.cli.commands.look import stacks
from hpckit.errors import RunError, UsageError


def test_silent_supervisor_is_an_error_after_a_bounded_wait(desk: Any, writer: Any) -> None:
    """The request is written; nobody answers; the verb gives up after half a minute."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    with pytest.raises(RunError, match="did not answer within 30 s") as caught:
        desk.say("stacks")
    assert "hpckit status" in caught.value.hint
    assert sum(desk.sleeps) == 30
    requests = launch.paths.run(0).attempt(1).stacks_requests.read_text()
    assert len(requests.splitlines()) == 1


def test_run_that_ends_meanwhile_is_said_to_have_ended(
    desk: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between the look at its state and the answer: no word of other versions."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()

    def ends(*_: object) -> None:
        attempt.complete()

    monkeypatch.setattr(stacks, "read_stacks_answer", ends)
    with pytest.raises(RunError, match=r"completed before it could answer") as caught:
        desk.say("stacks")
    assert f"hpckit logs {launch.id}.0" in caught.value.hint


def test_only_running_runs_are_asked(desk: Any, writer: Any) -> None:
    """An ended run has no ranks."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.complete()
    with pytest.raises(UsageError, match=r"\(completed\): only a running run can be asked"):
        desk.say("stacks")
    assert not launch.paths.run(0).attempt(1).stacks_requests.exists()
