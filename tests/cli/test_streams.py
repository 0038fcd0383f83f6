"""Promises about standard streams that are closed, full, or of another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

PROGRAM = (sys.executable, "-P", "-m", "hpckit")


def call(desk: Any, redirection: str, *words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Return how `hpckit WORDS` ended in a shell, with its streams redirected."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *words],
        cwd=desk.folder.parent,
        env={**os.environ, "HPCKIT_OUTPUTS": str(desk.folder), **environ},
        capture_output=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("verb", ["ls", "results", "status", "--help"])
def test_streams_that_are_full_are_one_error(desk: Any, verb: str) -> None:
    """`> /dev/full`: exit code 1, one line that says why and one what to do."""
    desk.freeze()
    done = call(desk, ">/dev/full", verb)
    lines = [splitline for splitline in done.stderr.decode().splitlines() if "warning:" not in splitline]
    assert done.returncode == 1
    assert len(lines) == 2
    said = "hpckit: error: standard output cannot be written: No space left on device"
    assert lines[0] == said


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_are_closed_do_not_stop_a_verb(desk: Any, redirection: str) -> None:
    """Where nobody reads, the verb does its work: exit code 0, and no traceback."""
    desk.freeze()
    for verb in ("ls", "results", "status"):
        done = call(desk, redirection, verb)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("redirection", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
def test_export_that_nobody_gets_is_an_error(desk: Any, redirection: str, why: str) -> None:
    """Its work is what it writes: exit code 1, unless it writes a file."""
    launch = desk.freeze()
    done = call(desk, redirection, "export", "csv", launch.id)
    said = f"hpckit: error: standard output cannot be written: {why}"
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (1, said)
    target = str(desk.folder / "o.csv")
    assert call(desk, redirection, "export", "csv", launch.id, "-o", target).returncode == 0


def test_streams_that_were_closed_lend_no_number_to_a_file(desk: Any, shell: Any) -> None:
    """A launch without standard streams writes whole files: nothing is printed into them."""
    words = ("launch", "experiment=command", "command=true", "code.snapshot=false")
    done = call(desk, "<&- >&- 2>&-", *words, "cluster=local", PATH=shell.environ["PATH"])
    assert done.returncode == 0
    (folder,) = desk.folder.iterdir()
    json.loads((folder / "launch.json").read_text())
    assert shell("watch", str(folder)).code == 0


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=thorough)])
def test_streams_show_escaped_what_their_encoding_lacks(desk: Any, writer: Any, encoding: str) -> None:
    """Text is degraded, JSON stays JSON, and neither ends in a traceback."""
    launch = desk.freeze(sweep=(("x=äöü☃😀",), ("x=1",)))
    attempt = writer(launch=launch)
    attempt.start()
    attempt.fail(traceback="ValueError: ☃😀")
    for words in (("status",), ("results",), ("logs", f"{launch.id}.0"), ("check", "na=☃")):
        done = call(desk, "", *words, PYTHONIOENCODING=encoding)
        assert b"Traceback" not in done.stderr, done.stderr
    shown = call(desk, "", "status", PYTHONIOENCODING=encoding)
    assert b"ValueError: \\u2603\\U0001f600" in shown.stdout
    results = call(desk, "", "results", "--json", PYTHONIOENCODING=encoding)
    assert json.loads(results.stdout.decode(encoding))["runs"][0]["overrides"] == {"x": "äöü☃😀"}


def test_outputs_that_are_empty_count_as_unset(shell: Any) -> None:
    """HPCKIT_OUTPUTS="": a launch goes where `ls` and `status` look for it."""
    shell.environ["HPCKIT_OUTPUTS"] = ""
    shell.environ["HPCKIT_CONFIG_DIR"] = ""
    words = ("experiment=command", "command=true", "code.snapshot=false", "cluster=local")
    rendered = json.loads(shell("render", "--json", *words).out)
    assert Path(rendered["dir"]).parent == shell.cwd / "outputs"
    assert rendered["launch"] in shell("ls").out
