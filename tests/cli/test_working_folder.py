"""Runs of one launch that write to the same relative paths, as scripts do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell
from tiers import thorough
from waiting import until

__all__ = ["shell"]

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import model.net
last = "runs/default/last.pt"
print("resumed" if os.path.exists(last) else "fresh", open("data/x.txt").read(), model.net.WIDTH)
os.makedirs("runs/default", exist_ok=True)
open(last, "w").write(sys.argv[1])
open("results.csv", "a").write(sys.argv[1])
if sys.argv[1] == os.environ.get("SPOIL"):
    open(os.path.join(os.path.dirname(model.net.__file__), "cache"), "w").write("spoiled")
"""


@pytest.fixture
def project(shell: Any) -> Path:
    """Fill the project with a script that resumes from a fixed relative path."""
    files = {
        "sw.py": SCRIPT,
        "runs/.gitkeep": "",
        "data/x.txt": "data",
        "model/net.py": "WIDTH = 8",
        "results.csv": "old ",
    }
    for name, text in files.items():
        (shell.cwd / name).parent.mkdir(exist_ok=True)
        (shell.cwd / name).write_text(text)
    return Path(shell.cwd)


def launched(shell: Any, *words: str) -> Path:
    """Launch the script as a command, wait, and return the folder of the launch."""
    command = ("launch", "-m", "experiment=command", "cluster=local", "--wait", *words)
    said = shell(*command)
    assert said.code == 0, said.out + said.err
    return Path(shell.outputs[-1])


def printed(launch: Path, run: int) -> str:
    """Return what the latest attempt of a run printed."""
    (*_, log) = sorted((launch / "runs" / f"{run:05d}").rglob("rank-00000.log"))
    return log.read_text().strip()


@thorough
def test_sweep_over_a_fixed_output_path_trains_every_run(shell: Any, project: Path) -> None:
    """No run finds another's files, reads of the code work, and each keeps what it wrote."""
    words = ("command='python sw.py ${params.lr}'", "+params.lr=0.1,0.5")
    launch = launched(shell, *words)
    assert [printed(launch, run) for run in range(2)] == ["fresh data 8"] * 2
    work = [launch / "runs" / f"{run:05d}" / "work" for run in range(2)]
    assert [(one / "runs/default/last.pt").read_text() for one in work] == ["0.1", "0.5"]
    assert [(one / "results.csv").read_text() for one in work] == ["old 0.1", "old 0.5"]
    assert sorted(path.name for path in work[0].iterdir()) == ["results.csv", "runs"]
    assert (launch / "code" / "results.csv").read_text() == "old "
    assert [path.name for path in (launch / "code" / "runs").iterdir()] == [".gitkeep"]
    assert not (project / "runs" / "default").exists()
    again = shell("rerun", f"{launch.name}.0", "--exact", "--wait")
    assert again.code == 0, again.err
    assert printed(shell.outputs[-1], 0) == "fresh data 8"
    assert shell("clean", launch.name, "--code", "--yes").code == 0
    assert not (launch / "code").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mode bits keep others from writing there")
@pytest.mark.usefixtures("project")
def test_writing_into_the_frozen_code_is_told(shell: Any) -> None:
    """As root, whom mode bits do not hold, a run that writes into the code gets a warning."""
    words = ("command='python sw.py 0.1'", "+env.SPOIL='0.1'")
    launch = launched(shell, *words)
    # The supervisor looks for it after the run has ended.
    until(lambda: any("model/cache" in warning for warning in warnings(shell, launch)))
    assert any("frozen code" in warning for warning in warnings(shell, launch))


def warnings(shell: Any, launch: Path) -> list[str]:
    """Return the warnings of the only run of a launch."""
    (run,) = json.loads(shell("status", launch.name, "--json").out)["runs"]
    return list(run["warnings"])


@pytest.mark.parametrize(("kind", "place"), [("project", ""), ("code", "code")])
def test_cwd_may_be_chosen(shell: Any, project: Path, kind: str, place: str) -> None:
    """`runtime.cwd` starts ranks in the project, or in the frozen code, where that is asked for."""
    launch = launched(shell, "command=pwd", f"runtime.cwd={kind}")
    assert printed(launch, 0) == str(launch / place if place else project)
    assert not (launch / "runs" / "00000" / "work").exists()
