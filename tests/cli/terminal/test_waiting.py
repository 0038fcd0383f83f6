"""`launch --wait`: the live view of `status --watch` on a terminal, or what the runs print."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from cli_world import NOW, make_context
from pseudo_terminal import Sitting
from report_launches import troubled_launch
from tiers import thorough

from hpckit.cli.terminal.waiting import Waiting, wait_for_launch

LOCAL = ("cluster=local", "code.snapshot=false")
SAY = ("sh", "-c", "echo one; echo two; exit $0")


def frames(said: str) -> list[str]:
    """Return the pages a terminal showed, one after the other, without their colours."""
    cleared = re.split(r"(?:\x1b\[2K|\x1b\[1A|\r)+", said.replace("\r\n", "\n"))
    return [re.sub(r"\x1b\[[0-9;?]*[a-z]", "", page) for page in cleared]


@thorough
@pytest.mark.slow
def test_wait_on_a_terminal_shows_counts_and_the_end_in_24_rows(shell: Any) -> None:
    """Of thirty runs, every page has the states and how far it is, and fits; failures are named."""
    words = ("launch", "--wait", "-m", "+params.i=range(0,30)", "cluster.max_parallel=4", *LOCAL)
    command = ("sh", "-c", "sleep 0.2; test $0 != 7", "${params.i}")
    with Sitting(words=(*words, "--", *command), cwd=shell.cwd, environ=shell.environ) as person:
        assert person.exit_code() == 1
    live = [page for page in frames(person.said) if "% done" in page and "created" in page]
    assert live, person.said
    for page in live:
        assert page.count("\n") < 24, page
    assert any("running" in page and re.search(r"to go|no estimate", page) for page in live)
    assert any(re.search(r"failed +1 ", page) for page in live)
    last = frames(person.said)[-1]
    assert "failed: exit_code" in last
    assert "30 runs: 29 completed, 1 failed" in last
    assert "not listed: 29 completed" in last


@pytest.mark.slow
def test_quitting_the_view_is_leaving_it(shell: Any) -> None:
    """`q` is as Ctrl-C: nobody can tell yet how it ends, and the runs continue."""
    words = ("launch", "--wait", *LOCAL, "--", "sleep", "600")
    with Sitting(words=words, cwd=shell.cwd, environ=shell.environ) as person:
        person.until("running")
        person.press("q")
        assert person.exit_code() == 130
    assert "the runs continue" in person.said
    assert shell("cancel").code == 0


def test_wait_follow_prints_what_a_run_prints(shell: Any) -> None:
    """Its output is all there is on standard output; states are lines on standard error."""
    said = shell("launch", "--wait", "--follow", *LOCAL, "--", *SAY, "3")
    assert said.code == 1
    (folder,) = shell.outputs
    assert said.out.splitlines()[-2:] == ["one", "two"]
    states = re.findall(rf"hpckit: {folder.name}\.0  (\w+)", said.err)
    assert states[-1] == "failed"
    assert "whole log" not in said.out


def test_wait_follow_says_which_of_several_runs_printed_a_line(shell: Any) -> None:
    """Each line stands behind the index by which other verbs find the run."""
    words = ("-m", "+params.i=0,1", *LOCAL, "--", *SAY, "${params.i}")
    said = shell("launch", "--wait", "-f", *words)
    assert said.code == 1
    printed = [line for line in said.out.splitlines() if "|" in line]
    assert sorted(printed) == [".0| one", ".0| two", ".1| one", ".1| two"]
    assert "2 runs: 1 completed, 1 failed" in said.err


def test_lines_of_a_wait_name_the_point_of_a_run(shell: Any) -> None:
    """By the overrides in which runs differ, not by those that all have."""
    said = shell("launch", "--wait", "-m", "+params.lr=0.1,0.2", "+params.a=7", *LOCAL, "--", "true")
    assert said.code == 0, said.err
    for index, point in enumerate(("lr=0.1", "lr=0.2")):
        lines = re.findall(rf"\.{index}  completed.*", said.out)
        assert lines
        assert point in lines[0].split()
        assert "a=7" not in lines[0]


@pytest.mark.parametrize("follow", [False, True])
def test_wait_ends_with_what_held_the_runs_back(desk: Any, *, follow: bool) -> None:
    """A line for each kind of verdict that matters, and where to read on."""
    launch = troubled_launch(desk)
    out, err = io.StringIO(), io.StringIO()
    context = make_context(desk.folder, stdout=out, stderr=err, now=lambda: NOW, sleep=lambda _: None)
    assert wait_for_launch(launch, context, Waiting(follow=follow)) == 1
    said = err.getvalue() if follow else out.getvalue()
    lines = [line.removeprefix("hpckit: ") for line in said.splitlines() if "held back" in line]
    assert lines == [
        f"held back: {kind}; `hpckit status {launch.id}.0` says more"
        for kind in (*("input bound (high)", "restarts (high)", "straggler (medium)", "throttled (medium)"),)
    ]
    out.truncate(0)
    wait_for_launch(launch, context, Waiting(quiet=True))
    assert "held back" not in out.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--follow",), "hpckit launch --wait --follow"),
        (("--wait", "--follow", "--json"), "cannot combine --follow with --json"),
    ],
)
def test_follow_without_its_like_is_refused(shell: Any, words: tuple[str, ...], said: str) -> None:
    """It is a way to wait, for people."""
    answer = shell("launch", *words, *LOCAL, "--", "true")
    assert answer.code == 2
    assert said in answer.err
    assert shell.outputs == []
