"""Promises of a launch that answers by a file, and ended without one: the error says why."""

from __future__ import annotations

from typing import Any

import pytest
from cli_world import NOW, make_context

from hpckit.context import Context
from hpckit.errors import RunError
from hpckit.operations.answered_run import await_answer_of_run


def context(desk: Any) -> Context:
    """Return a context of the desk, in which no time passes."""
    return make_context(desk.folder, {"PATH": ""}, now=lambda: NOW, sleep=lambda _: None)


def nothing(_: object) -> None:
    """Read no answer."""


def test_cancelled_run_is_told_as_cancelled(desk: Any) -> None:
    """Not as one whose node does not see the folder."""
    launch = desk.freeze()
    desk.say("cancel")
    with pytest.raises(RunError, match="was cancelled before it wrote figures"):
        await_answer_of_run(launch, context(desk), nothing, "figures")


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("/usr/bin/python3: No module named hpckit", "cluster.python"),
        ("RuntimeError: it broke", "hpckit logs"),
    ],
)
def test_failed_run_is_told_with_its_log(desk: Any, writer: Any, log: str, hint: str) -> None:
    """And with what to do: a Python without hpckit is another one, or needs it."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.agents_log(log + "\n")
    attempt.fail()
    with pytest.raises(RunError, match="wrote no facts") as raised:
        await_answer_of_run(launch, context(desk), nothing, "facts")
    assert log in raised.value.message
    assert hint in raised.value.hint
