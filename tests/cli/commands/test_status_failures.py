"""Failures that a new user meets first, as `hpckit status` tells them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_world import shell
from tiers import thorough

__all__ = ["shell"]

pytestmark = pytest.mark.slow


def failure(shell: Any, *words: str) -> dict[str, Any]:
    """Launch what fails, wait, and return the failure of its run."""
    assert shell("launch", "cluster=local", "--wait", *words).code == 1
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    return dict(run["failure"])


def test_failing_program_is_told_by_what_it_printed_last(shell: Any) -> None:
    """Of a command that is no Python, the exit code and its final events are the message."""
    told = failure(shell, "experiment=command", "command=[bash,-c,'echo oops >&2; exit 3']")
    assert told["cause"] == "exit_code"
    assert told["message"] == "rank 0 ended with exit code 3; it printed last:\noops"


@thorough
@pytest.mark.training
def test_gpu_that_torch_does_not_see_fails_before_training(shell: Any) -> None:
    """A GPU that was asked for is not replaced by the CPU, unless runtime.device says so."""
    (shell.cwd / "t.py").write_text("def main(config, run): print(run.device)\n")
    words = ("experiment=function", "entry_point=t:main", "resources=one_gpu")
    shown = ("cluster.gpus_per_node=1", "recovery=never", "+env.CUDA_VISIBLE_DEVICES=''")
    told = failure(shell, *words, *shown)
    assert "resources.gpus_per_node=1 asks for one" in told["message"]
    cpu = shell("launch", "cluster=local", "--wait", *words, *shown, "runtime.device=cpu", "--rerun")
    assert cpu.code == 0, cpu.err


@pytest.mark.training
def test_advice_of_an_error_is_told_with_it(shell: Any) -> None:
    """What an error of hpckit advises is in the record and in `status`, not in a log alone."""
    (shell.cwd / "t.py").write_text("def main(config, run):\n    run.timed('').__enter__()\n")
    told = failure(shell, "experiment=function", "entry_point=t:main", "resources=cpu")
    assert told["message"].endswith('characters\nwrite `with run.timed("forward"):`')
    assert '\n  write `with run.timed("forward"):`\n' in shell("status").out
