"""Promises on the step at which a resume begins: it is said before anyone waits for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiers import thorough

pytestmark = [pytest.mark.slow, pytest.mark.training]

SCRIPT = """
import time, torch
def main(config, run):
    if config.get("keep", True):
        run.state(model=torch.nn.Linear(2, 2))
    for step in run.steps(9):
        if step == 5 and run.attempt == 1:
            time.sleep(1)  # saves are written while training continues
            raise RuntimeError("no further")
"""
TASK = ("experiment=function", "entry_point=t:main", "resources=cpu", "cluster=local")


@thorough
def test_resume_without_a_checkpoint_says_that_it_begins_at_step_0(shell: Any) -> None:
    """Before any save nothing can be continued: `--wait`, `status` and `resume` say it."""
    (shell.cwd / "t.py").write_text(SCRIPT)
    said = shell("launch", *TASK, "recovery=never", "--wait")
    assert said.code == 1
    for text in (said.out, shell("status").out):
        assert "(rank 0 on" in text
        assert "at step 5): RuntimeError: no further" in text
        assert "(the frozen code, from step 0: it has no checkpoint)" in text
    assert "exception, from step 0: it has no checkpoint" in shell("resume", "--dry-run").out.replace(
        "(exception)", "exception"
    )
    resumed = shell("resume", "--wait")
    assert "  begins  0: from step 0: it has no checkpoint\n" in resumed.out
    assert resumed.code == 0, resumed.err


def test_resume_from_a_checkpoint_says_its_step(shell: Any) -> None:
    """The step is the first one that is done again."""
    (shell.cwd / "t.py").write_text(SCRIPT)
    words = ("recovery=never", "checkpoint.interval_steps=4", "--wait")
    assert shell("launch", *TASK, *words).code == 1
    assert "(the frozen code, from step 4)" in shell("status").out
    assert "  begins  0: from step 4\n" in shell("resume", "--wait").out


def test_run_without_state_is_told_that_nothing_is_saved(shell: Any) -> None:
    """It stands at the end of `--wait`, and in `status`, before a restart shows it."""
    (shell.cwd / "t.py").write_text(SCRIPT.replace("run.attempt == 1", "False"))
    said = shell("launch", *TASK, "+keep=false", "--wait")
    words = "no state is registered with run.state(): nothing is saved, and a restart begins"
    assert f"warning: {words} at step 0" in said.out
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    assert [one for one in run["warnings"] if one.startswith(words)]


def test_run_that_names_its_start_has_state_of_its_own(shell: Any) -> None:
    """A framework restored it, or begins: it is not told that nothing is saved."""
    script = SCRIPT.replace("run.attempt == 1", "False").replace("steps(9)", "steps(9, start=0)")
    (shell.cwd / "t.py").write_text(script)
    assert shell("launch", *TASK, "+keep=false", "--wait").code == 0
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    assert (run["state"], run["warnings"]) == ("completed", [])
