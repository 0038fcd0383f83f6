"""Promises of the command line as a whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpckit
from hpckit.cli.main import VERB_GROUPS, VERBS
from hpckit.features.exporting.documents import ExportKind


def test_main_help_lists_every_verb(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`hpckit --help` names each verb once, below what it is for, and none that is hidden."""
    assert shell("--help").code == 0
    out = capsys.readouterr().out
    groups = [
        {line.split()[0] for line in group.splitlines() if re.match(r"  [a-z]", line)}
        for group in out.split("\n\n")
    ]
    assert [group for group in groups if group & set(VERBS)] == [set(g) for g in VERB_GROUPS.values()]
    assert "supervise" not in out


def test_main_says_its_version(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`hpckit --version` says name and version."""
    assert shell("--version").code == 0
    assert capsys.readouterr().out == f"hpckit {hpckit.__version__}\n"


def test_main_without_a_verb_is_a_usage_error(shell: Any) -> None:
    """Nothing asked for: help on standard error, exit code 2."""
    said = shell()
    assert said.code == 2
    assert said.out == ""
    assert "launch" in said.err


def test_main_help_is_a_word_too(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`hpckit help` and `hpckit help VERB` say what `--help` says."""
    for words in (("--help",), ("launch", "--help")):
        assert shell(*words).code == 0
        expected = capsys.readouterr().out
        assert shell("help", *words[:-1]).code == 0
        assert capsys.readouterr().out == expected != ""


def test_main_guesses_a_verb_only_if_it_is_close(shell: Any) -> None:
    """`tracker` is not `stacks`, and `energy` is not `render`."""
    for word, hint in (
        ("launhc", "did you mean `hpckit launch`?"),
        ("tracker", "`hpckit --help` lists all verbs"),
        ("energy", "did you mean `hpckit status`?"),
    ):
        assert hint in shell(word).err


@pytest.mark.parametrize(
    ("word", "verb"), [("run", "launch"), ("kill", "cancel"), ("list", "ls"), ("delete", "rm")]
)
def test_main_knows_what_other_tools_call_its_verbs(shell: Any, word: str, verb: str) -> None:
    """A word of another tool is answered with ours, not with the one that looks like it."""
    said = shell(word, "train.py")
    assert said.code == 2
    assert f"did you mean `hpckit {verb}`?" in said.err


def test_main_names_the_nearest_verb(shell: Any) -> None:
    """A mistyped verb is answered with the one that was meant."""
    said = shell("luanch")
    assert said.code == 2
    assert "hpckit launch" in said.err


def test_main_shows_errors_on_stderr_with_a_hint(shell: Any) -> None:
    """An error is one message and what to do, without a traceback; standard output is empty."""
    said = shell("status")
    assert said.code == 2
    assert said.out == ""
    first, second = said.err.splitlines()
    assert first.startswith("hpckit: error: there are no launches in ")
    assert second.startswith("  ")


def test_main_is_quiet_after_ctrl_c(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with 130 and says nothing."""

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpckit.cli.commands.look.ls.run", interrupt)
    said = shell("ls")
    assert (said.code, said.out, said.err) == (130, "", "")


def test_main_is_quiet_when_the_reader_leaves(shell: Any) -> None:
    """`hpckit launch --dry-run | head -0` ends without a traceback."""
    words = ("launch", "--dry-run", "cluster=local", "experiment=command", "command=true")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hpckit", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=shell.environ,
        cwd=shell.cwd,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("launch", "--wiat"), "unrecognized arguments: --wiat", "did you mean --wait?"),
        (("status", "--faild"), "unrecognized arguments: --faild", "did you mean --failed?"),
        (("launch", "-w"), "unrecognized arguments: -w", "`hpckit launch --help` lists"),
        (("status", "--limit", "x"), "--limit is 'x'; it takes a whole number, such as 3", "--help"),
        (("plot", "--width", "5cm"), "--width is '5cm'; it takes a number, such as 1.5", "--help"),
        (("report", "--refresh", "x"), "--refresh is 'x'; it takes a time, such as 60, 90s or 2m", "--help"),
        (("ls", "--state"), "--state needs a value", "--help"),
        (("export", "-o"), "--to needs a value", "--help"),
        (
            ("export", "tensorbord"),
            f"KIND is 'tensorbord'; it is one of {', '.join(ExportKind)}",
            "did you mean tensorboard?",
        ),
        (("export", "xyz"), f"KIND is 'xyz'; it is one of {', '.join(ExportKind)}", "--help"),
        (("--versoin",), "unrecognized arguments: --versoin", "did you mean --version?"),
    ],
)
def test_main_refuses_options_as_it_refuses_anything(
    shell: Any, words: tuple[str, ...], message: str, hint: str
) -> None:
    """`hpckit: error:` and what to do, with the option that was probably meant; exit code 2."""
    said = shell(*words)
    first, second = said.err.splitlines()
    assert (said.code, said.out) == (2, "")
    assert first == f"hpckit: error: {message}"
    assert hint in second


def test_main_in_a_folder_that_has_been_removed_says_so(tmp_path: Path) -> None:
    """As after `git worktree remove`, in a shell that is still there: no traceback."""
    (tmp_path / "gone").mkdir()
    words = 'cd "$1" && rmdir "$1" && exec "$2" -P -m hpckit ls'
    done = subprocess.run(
        ["sh", "-c", words, "sh", tmp_path / "gone", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hpckit: error: the current folder has been removed\n  change to another one: cd\n"
