"""Promises of hpckit.model.command: what a command starts, by its words alone."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.command import parse_invocation, parse_shell_commands


@pytest.mark.parametrize(
    ("command", "script", "module", "code", "arguments"),
    [
        ("python train.py -m x", "train.py", None, None, "-m x"),
        ("python -u -X dev -W ignore train.py -c d", "train.py", None, None, "-c d"),
        ("/opt/bin/python3.11 -Wignore train.py", "train.py", None, None, ""),
        ("python --check-hash-based-pycs never train.py", "train.py", None, None, ""),
        ("python -m pkg.train -m x", None, "pkg.train", None, "-m x"),
        ("python -um pkg.train x", None, "pkg.train", None, "x"),
        ("python -mpkg.train x", None, "pkg.train", None, "x"),
        ("python -c 'print(1)' train.py", None, None, "print(1)", "train.py"),
        ("python - train.py", None, None, None, "train.py"),
        ("python -- train.py", "train.py", None, None, ""),
        ("python", None, None, None, ""),
        ("python -m", None, "", None, ""),
        ("bash run.sh -c x", "run.sh", None, None, "-c x"),
        ("bash -x -o pipefail run.sh", "run.sh", None, None, ""),
        ("bash --rcfile f --norc run.sh", "run.sh", None, None, ""),
        ("bash -euo pipefail -c 'a b' c", None, None, "a b", "c"),
        ("bash -lc 'a b'", None, None, "a b", ""),
        ("bash +e run.sh", "run.sh", None, None, ""),
        ("env A=1 B=2 python train.py", "train.py", None, None, ""),
        ("env -u A python train.py", None, None, None, "-u A python train.py"),
        ("env A=1", None, None, None, "A=1"),
        ("./train.py x", None, None, None, "x"),
    ],
)
def test_invocation_reads_as_the_interpreter_does(
    command: str, script: str | None, module: str | None, code: str | None, arguments: str
) -> None:
    """Options of the interpreter end at what it runs; what follows is that one's own."""
    started = parse_invocation(shlex.split(command))
    assert (started.script, started.module, started.code) == (script, module, code)
    assert started.arguments == tuple(arguments.split())


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("a 1 && b 2; c | d", [["a", "1"], ["b", "2"], ["c"], ["d"]]),
        ("A=1 B=2 python t.py > log", [["python", "t.py"]]),
        ("exec python 'a b'\npython c", [["python", "a b"], ["python", "c"]]),
        ("(cd x; y) || z", [["cd", "x"], ["y"], ["z"]]),
        ("a < in >> out b", [["a", "b"]]),
        ("'unclosed", []),
        ("", []),
    ],
)
def test_shell_commands_are_told_apart(line: str, commands: list[list[str]]) -> None:
    """By what separates them, without assignments before them and files they write to."""
    assert [list(one) for one, _ in parse_shell_commands(line)] == commands


@given(st.lists(st.text(max_size=8), min_size=1), st.text(max_size=40))
def test_reading_words_never_fails(words: list[str], line: str) -> None:
    """Whatever the words: at most one of script, module and code, and no word made up."""
    for first in (words[0], "python", "bash", "env"):
        started = parse_invocation([first, *words])
        given = [one for one in (started.script, started.module, started.code) if one is not None]
        assert len(given) <= 1
        assert set(started.arguments) <= {first, *words}
    assert all(command for command, _ in parse_shell_commands(line))
