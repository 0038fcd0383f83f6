"""An installation without torch, such as on a login node, does all that needs none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import run_to_end

pytestmark = pytest.mark.slow

ABSENT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(name, path=None, target=None):
    absent = name.partition(".")[0] in {"torch", "sklearn", "numpy", "optuna"}
    return None if absent else find(name, path, target)

PathFinder.find_spec = find_others
"""
COMMAND = ("experiment=command", "command=[echo,hi]", "cluster=local")


def hpckit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in a Python that has none of these packages."""
    (folder / "sitecustomize.py").write_text(ABSENT)
    return run_to_end(
        [sys.executable, "-P", "-m", "hpckit", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "HPCKIT_OUTPUTS": str(folder / "outputs")},
    )


def test_verbs_that_train_nothing_need_no_torch(tmp_path: Path) -> None:
    """From `--help` to `cancel`, and a run that is a program of its own."""
    for words in (
        ("--help",),
        ("render", *COMMAND, "name=other"),
        ("launch", *COMMAND, "--wait"),
        *(("ls",), ("status",), ("logs",), ("results",), ("cancel",)),
        *(("checkpoint", "ls"), ("checkpoint", "verify")),
    ):
        done = hpckit(tmp_path, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    done = hpckit(tmp_path, "checkpoint", "export", "-o", "model.pt")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "an export of a model needs torch" in done.stderr
    assert "'.[train]'" in done.stderr


def test_functions_without_torch_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """Before anything is written: which Python lacks it, and what to install."""
    done = hpckit(tmp_path, "launch", "experiment=digits", "cluster=local")
    assert done.returncode == 2
    assert f"{sys.executable} does not have it" in done.stderr
    assert "'.[train]'" in done.stderr
    assert not (tmp_path / "outputs").exists()
