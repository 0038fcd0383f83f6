"""Promises of cli.progress: who waits sees how far it is, and nobody else does."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.main import main
from hpckit.cli.terminal.progress_bar import show_progress_bar
from hpckit.context import Context


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def world(stderr: io.StringIO, *, pace_s: float, **more: Any) -> Context:
    """Return a context whose clock goes on by `pace_s` each time somebody looks."""
    times = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=pace_s * n) for n in range(9999))
    given = {"environ": {"TERM": "xterm"}, "cwd": Path("/"), "stdout": io.StringIO(), **more}
    return Context(
        stderr=stderr, now=lambda: next(times), sleep=lambda _: None, meter=show_progress_bar, **given
    )


def steps(stderr: io.StringIO, *, pace_s: float, quiet: bool = False) -> str:
    """Return what ten steps at this pace leave on standard error."""
    with world(stderr, pace_s=pace_s).show_progress("counting", quiet=quiet) as tell:
        for done in range(10):
            tell(done, 10)
    return stderr.getvalue()


def test_progress_is_drawn_beyond_a_second_and_erased() -> None:
    """A line with what is done and how far it is, which is gone at the end."""
    drawn = steps(Terminal(), pace_s=0.5)
    assert "counting" in drawn
    assert "9/10" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize(
    ("stderr", "pace_s", "quiet"),
    [(Terminal(), 0.05, False), (io.StringIO(), 5.0, False), (Terminal(), 5.0, True)],
    ids=["fast", "no terminal", "quiet"],
)
def test_progress_is_not_drawn_for(stderr: io.StringIO, pace_s: float, *, quiet: bool) -> None:
    """What is over within a second, for programs and files, and where nobody is to be told."""
    assert steps(stderr, pace_s=pace_s, quiet=quiet) == ""


@pytest.mark.parametrize(("words", "drawn"), [((), True), (("--json",), False)])
def test_progress_of_a_sweep_is_that_of_composing_and_freezing(
    words: tuple[str, ...], *, drawn: bool, tmp_path: Path, path_without_slurm: str
) -> None:
    """`render` of a sweep shows both steps on a terminal's standard error; --json shows none."""
    stderr = Terminal()
    environ = {"TERM": "xterm", "PATH": path_without_slurm}
    context = world(stderr, pace_s=0.5, environ=environ, cwd=tmp_path)
    sweep = ("experiment=command", "command=true", "cluster=local", "+x=range(0,300)")
    assert main(["render", "-m", *sweep, *words], context) == 0, stderr.getvalue()
    shown = stderr.getvalue()
    assert ("composing" in shown, "freezing" in shown) == (drawn, drawn)
