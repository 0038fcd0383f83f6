"""A line of cluster.setup that fails ends the job, and `status` says which line, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.whole

WORDS = (
    *("launch", "--wait", "experiment=command", "code.snapshot=false", "cluster=slurm"),
    *("recovery=never", "command='echo trained'"),
)


def launched(slurm_shell: Any, *lines: str) -> tuple[dict[str, Any], str]:
    """Launch with these lines; return what `status` says, for programs and for people."""
    quoted = json.dumps(list(lines))
    slurm_shell(*WORDS, f"cluster.setup={quoted}")
    (run,) = json.loads(slurm_shell("status", "--json").out)["runs"]
    return run, slurm_shell("status").out


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["conda activate nope"], "with exit code 127 at: conda activate nope"),
        (["true", "source no/such/env"], "with exit code 1 at: source no/such/env"),
        (["false || false"], "with exit code 1 at: false || false"),
        (["true | false"], "with exit code 1 at: true | false"),
        (["false | true"], "with exit code 1 at: false | true"),
        (["cd no/such && source here"], "with exit code 1 at: cd no/such && source here"),
        (["trap 'echo bye' EXIT", "exit 0"], "with exit code 0 at: exit 0"),
        (["trap 'exit 0' EXIT", "cd no/such"], "with exit code 1 at: cd no/such"),
        (["exec true"], "with exit code 0 at: exec true"),
        (["exit 0"], "with exit code 0 at: exit 0"),
        (["exit 5"], "with exit code 5 at: exit 5"),
        (["set -eu", 'echo "$NOT_SET_ANYWHERE"'], "cluster.setup ended on"),
        (["fails() { return 3; }", "fails"], "with exit code 3 at: fails"),
        (["if true; then", "false", "fi"], "with exit code 1 at: false"),
    ],
)
def test_line_that_fails_ends_the_job_and_is_named(slurm_shell: Any, lines: list[str], named: str) -> None:
    """The run never begins in another environment than the one that was asked for."""
    run, told = launched(slurm_shell, *lines)
    assert run["state"] == "failed"
    assert run["failure"]["cause"] == "scheduler"
    assert "before its supervisor started: cluster.setup ended on" in run["failure"]["message"]
    assert named in run["failure"]["message"]
    assert "cluster.setup ended on" in told


@pytest.mark.parametrize(
    "lines",
    [
        ["false || true", "[ -f no/such ] && source no/such", "! true"],
        ["if false; then", "exit 9", "fi"],
        ["source {folder}/of_a_site.sh"],
        ["trap 'echo bye' EXIT", "trap 'echo wrong' ERR"],
        ["yes | head -1", "exec 3> made", "false | true || true", "true && true | cat"],
        ["f() {{", "false | true", "true", "}}", "f"],
        ["x=$(false; echo y)", "(exit 0)", "true # 'quoted"],
    ],
)
def test_line_that_does_not_fail_ends_nothing(slurm_shell: Any, lines: list[str]) -> None:
    """A condition may be false, and a sourced file may have lines that fail and go on."""
    script = Path(slurm_shell.cwd) / "of_a_site.sh"
    script.write_text("false\ninner() { false; true; }\ninner\ntrue\n")
    run, _ = launched(slurm_shell, *(line.format(folder=slurm_shell.cwd) for line in lines))
    assert run["state"] == "completed", run


def test_what_a_job_said_last_is_shown_if_its_run_never_began(slurm_shell: Any) -> None:
    """Such as that hpckit is no longer installed; of many jobs the logs of a few are read."""
    gone = Path(slurm_shell.cwd) / "gone"
    gone.write_text('#!/bin/sh\necho "$0: No module named hpckit" >&2; exit 1\n')
    gone.chmod(0o755)
    words = (*WORDS, "-m", f"cluster.python={gone}", f"+params.i={','.join(map(str, range(12)))}")
    slurm_shell(*words)
    runs = json.loads(slurm_shell("status", "--json").out)["runs"]
    said = [f"{gone}: No module named hpckit" in run["failure"]["message"] for run in runs]
    assert said == [True] * 8 + [False] * 4
