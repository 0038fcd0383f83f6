"""Promises about how often Slurm is asked by verbs that look at many launches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.slow

SLEEP = ("experiment=command", "command=sleep 300", "cluster=slurm", "code.snapshot=false")


@pytest.fixture
def asked(slurm_shell: Any, fake_slurm: Any) -> Any:
    """Launch three times; return what counts how often squeue was called since the last time."""
    for number in range(3):
        assert slurm_shell("launch", *SLEEP, f"seed={number}").code == 0
    program, calls = fake_slurm.bin_dir / "squeue", Path(f"{fake_slurm.bin_dir}.calls")
    original = program.resolve()
    program.unlink()
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {original} squeue "$@"\n')
    program.chmod(0o755)

    def count() -> int:
        # Supervisors ask about one job, their own.
        text = calls.read_text() if calls.exists() else ""
        calls.unlink(missing_ok=True)
        return len(re.findall(r"--jobs=\d+,\d+,\d+ ", text))

    return count


def test_cancel_all_asks_once_and_reaches_every_launch(slurm_shell: Any, asked: Any) -> None:
    """Of three launches the queue is asked for once, and all three are cancelled."""
    said = slurm_shell("cancel", "--all")
    assert said.code == 0, said.err
    assert asked() == 1
    assert said.out.count("cancelling") == 3


@thorough
def test_clean_all_asks_once_to_show_and_once_to_remove(slurm_shell: Any, asked: Any) -> None:
    """However many launches there are; those that may be alive are left alone."""
    assert slurm_shell("clean", "--all", "--dry-run").code == 0
    assert asked() == 1
    for folder in slurm_shell.outputs:
        (folder / ".removed.x.1").mkdir()
    said = slurm_shell("clean", "--all", "--yes")
    assert said.code == 0, said.err
    assert asked() == 2
    assert "removed 3 items" in said.out
    assert slurm_shell("cancel", "--all").code == 0


@thorough
def test_launch_asks_once_about_all_that_it_may_adopt(slurm_shell: Any, asked: Any) -> None:
    """Of runs in three launches the queue is asked for once."""
    words = ("-m", *SLEEP, "seed=0,1,2", "--dry-run", "--any-code")
    said = slurm_shell("launch", *words)
    assert "nothing to launch" in said.out
    assert said.err.count("not submitted again") == 3
    assert asked() == 1
    assert slurm_shell("cancel", "--all").code == 0
