"""Promises of `hpckit completion`: real shells ask, and a person presses the tab key."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.main import VERBS
from hpckit.model.states import RunState

BASH = """
eval "$(hpckit completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete hpckit
printf '%s\\n' "${COMPREPLY[@]}"
"""


def needs(shell: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs a shell of this host."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def environ(desk: Any, tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of a person whose launches are on the desk."""
    (tmp_path / "home").mkdir()
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path / "home"),
        "HPCKIT_OUTPUTS": str(desk.folder),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def run(words: list[str], environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return the lines that a shell printed."""
    done = subprocess.run(
        words, env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


@pytest.fixture
def offered(environ: Mapping[str, str], tmp_path: Path) -> Any:
    """Return what bash offers for a line."""
    return lambda line: run(["bash", "--norc", "-c", BASH, "bash", line], environ, tmp_path)


def test_completion_offers_verbs_and_options(offered: Any) -> None:
    """All verbs but the hidden ones, and the options of the verb that is typed."""
    assert offered("hpckit ") == list(VERBS)
    assert offered("hpckit stat") == ["status"]
    assert set(offered("hpckit rm --")) == {
        "--help", "--yes", "--dry-run", "--json", "--output-dir"
    }  # fmt: skip
    assert offered("hpckit completion f") == ["fish"]


def test_completion_offers_launches_newest_first_and_their_runs(offered: Any, desk: Any) -> None:
    """By the beginning of an id; of one launch its runs, too; and `.N` of the latest."""
    old = desk.freeze("old", sweep=[("a=1",), ("a=2",)])
    new = desk.freeze("new", minute=1)
    (desk.folder / ".removed.x-20260101-000000-ab12.00112233").mkdir()
    assert offered("hpckit status ") == [new.id, old.id]
    assert offered("hpckit status ol") == [old.id, f"{old.id}.0", f"{old.id}.1"]
    assert offered(f"hpckit logs {old.id}.") == [f"{old.id}.0", f"{old.id}.1"]
    assert offered("hpckit logs old.") == ["old.0", "old.1"]
    assert offered("hpckit logs .") == [".0"]
    assert offered("hpckit rm o") == [old.id]
    assert offered(f"hpckit rm {new.id} o") == [old.id]
    assert offered("hpckit diff .0 n") == [new.id]
    assert offered("hpckit status --json n") == [new.id]


def test_completion_looks_where_the_option_says(offered: Any, desk: Any, tmp_path: Path) -> None:
    """`--output-dir` counts, and a folder that is not there offers nothing."""
    launch = desk.freeze()
    desk.folder.rename(tmp_path / "elsewhere")
    assert offered("hpckit status ") == []
    assert offered(f"hpckit status --output-dir {tmp_path}/elsewhere ") == [launch.id]


def test_completion_offers_groups_options_and_keys(offered: Any, tmp_path: Path) -> None:
    """The user's own next to the shipped ones; bash takes what follows the last `=` or comma."""
    mine = tmp_path / "conf" / "experiment"
    mine.mkdir(parents=True)
    (mine / "mine.yaml").write_text("a: 1\n")
    assert "experiment=" in offered("hpckit launch exp")
    found = offered("hpckit launch experiment=")
    assert found[0] == "mine"
    assert {"digits", "charlm"} <= set(found)
    assert offered("hpckit launch --wait cluster=loc") == ["local"]
    assert offered("hpckit launch a=1 --wait cluster=loc") == ["local"]
    assert offered("hpckit launch -m experiment=digits,min") == ["digits,mine"]
    assert offered("hpckit launch resources.nodel") == ["resources.nodelist="]


def test_completion_offers_states(offered: Any) -> None:
    """One after another."""
    assert offered("hpckit status --state ") == list(RunState)
    assert offered("hpckit status --state failed,un") == ["failed,unknown"]


def test_completion_takes_as_long_for_a_thousand_launches_as_for_one(
    environ: Mapping[str, str], desk: Any, tmp_path: Path
) -> None:
    """In seconds of CPU, to a factor of two and a half: names are read, not the launches."""
    asked = {**environ, "_ARGCOMPLETE": "1", "COMP_LINE": "hpckit status d", "COMP_POINT": "15"}

    def cpu_seconds() -> float:
        before = os.times()
        assert run(["bash", "-c", "hpckit 8>&1"], asked, tmp_path) == [first.id]
        after = os.times()
        spent = after.children_user + after.children_system
        return spent - before.children_user - before.children_system

    first = desk.freeze()
    of_one = min(cpu_seconds() for _ in range(2))
    for number in range(1000):
        folder = desk.folder / f"more-20250101-{number:06d}-ab12"
        folder.mkdir(mode=0o700)
        shutil.copy(first.paths.launch, folder / "launch.json")
    assert min(cpu_seconds() for _ in range(2)) < 2.5 * of_one


def test_completion_of_a_broken_folder_offers_nothing(offered: Any, tmp_path: Path) -> None:
    """A configuration folder that does not exist is said by `launch`, not by the tab key."""
    assert offered(f"hpckit launch --config-dir {tmp_path}/absent clu") == []


@needs("fish")
def test_completion_works_in_fish(environ: Mapping[str, str], desk: Any, tmp_path: Path) -> None:
    """Fish asks by itself, and keeps the order."""
    old, new = desk.freeze("old"), desk.freeze("new", minute=1)
    for line, wanted in (
        ("hpckit status ", [new.id, old.id]),
        ("hpckit launch cluster=lo", ["cluster=local"]),
    ):
        script = f"hpckit completion fish | source; complete -C '{line}'"
        assert run(["fish", "--no-config", "-c", script], environ, tmp_path) == wanted


@pytest.mark.parametrize(
    ("start", "setup"),
    [
        pytest.param(
            ["bash", "--norc", "-i"],
            'bind "set enable-bracketed-paste off"; eval "$(hpckit completion bash)"',
            id="bash",
        ),
        pytest.param(
            ["zsh", "-f", "-i"],
            'autoload -Uz compinit; compinit -u -D; eval "$(hpckit completion zsh)"',
            id="zsh",
            marks=needs("zsh"),
        ),
    ],
)
def test_completion_answers_the_tab_key(
    environ: Mapping[str, str], desk: Any, tmp_path: Path, start: list[str], setup: str
) -> None:
    """A person at a terminal types half a word and presses tab."""
    desk.freeze("only", sweep=[("a=1",)])
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        start, env=environ, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    try:
        until(ours, "ready0", after=f"{setup}; echo ready$((0))\n")
        until(ours, "only-20260101-000000-ab12", after="hpckit status on\t")
        until(ours, "cluster=local", after="\x15hpckit launch cluster=loc\t")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def until(terminal: int, text: str, *, after: str) -> None:
    """Type, and read until the shell has written this."""
    os.write(terminal, after.encode())
    said, deadline = "", time.monotonic() + 60
    while text not in said:
        assert time.monotonic() < deadline, said
        ready, _, _ = select.select([terminal], [], [], 0.5)
        if ready:
            said += os.read(terminal, 65536).decode(errors="replace")
