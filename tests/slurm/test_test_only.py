"""What is made of the words of `sbatch --test-only`, as releases of Slurm print them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerAwayError
from hpckit.model.cluster.site import NodeGroup
from hpckit.model.finding import ExpectedStart, Finding, Severity
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.test_only import dry_run_sbatch

UP = (NodeGroup(partition="p", nodes=4, cpus=1, memory_mb=1, gres={}, state="mixed"),)
DRAINED = (*UP, NodeGroup(partition="p", nodes=1, cpus=1, memory_mb=1, gres={}, state="drained*"))


@pytest.fixture
def ask(plan_of_one_job: Callable[..., Any], tmp_path: Path) -> Any:
    """Return a function that rehearses a job before an sbatch that says and ends as told."""

    def _ask(said: str, *, code: int = 0, runs: int = 1, nodes: Any = UP) -> Any:
        program = tmp_path / "sbatch"
        program.write_text(
            f'#!/bin/sh\necho "$* [$SBATCH_PARTITION]" > {tmp_path}/asked\n'
            f"cat << 'END' >&2\n{said}\nEND\nexit {code}\n"
        )
        program.chmod(0o755)
        environ = {"PATH": "/usr/bin:/bin", "SBATCH_PARTITION": "of-the-user"}
        commands = SlurmCommands(bin_dir=str(tmp_path), environ=environ)
        job = plan_of_one_job(tmp_path, runs=runs).jobs[0]
        text = "#!/bin/sh\n#SBATCH --partition=stated\n"
        return dry_run_sbatch(job, text, commands, lambda: nodes)

    return _ask


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: Job 7 to start at 1767312000 using 4 processors on nodes n[1-2] in partition p",
        (
            "sbatch: Job 7 to start at 1767312000 using 4 processors on nodes n[1-2] in partition p"
            "\nsbatch: a remark of the site's"
        ),
        (
            "sbatch: lua: welcome\nJob 7 to start at 1767312000 using 4 processors on nodes "
            "n[1-2] in partition p"
        ),
    ],
)
def test_forecast_is_read_among_whatever_else_is_said(ask: Any, said: str) -> None:
    """The moment and the rest of its line are kept, on whichever stream they come."""
    assert ask(said) == ExpectedStart(
        job_index=0,
        at=datetime(2026, 1, 2, tzinfo=UTC),
        words="using 4 processors on nodes n[1-2] in partition p",
    )


def test_forecast_of_an_array_asks_for_its_first_element(ask: Any, tmp_path: Path) -> None:
    """Limits on arrays are not the question here; and what the script states is not overruled."""
    ask("sbatch: Job 7 to start at 1767312000", runs=5)
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--test-only --array=0 ")
    assert asked.endswith("[]\n")


def test_no_moment_is_no_refusal(ask: Any) -> None:
    """Words that nobody foresaw are passed on."""
    assert ask("it will be fine") == ExpectedStart(job_index=0, at=None, words="it will be fine")


@pytest.mark.parametrize(
    ("said", "nodes", "severity"),
    [
        ("allocation failure: Invalid account specified", DRAINED, Severity.error),
        ("allocation failure: Requested node configuration is not available", UP, Severity.error),
        ("allocation failure: Requested node configuration is not available", DRAINED, Severity.warning),
        ("allocation failure: Requested node configuration is not available", None, Severity.warning),
    ],
)
def test_refusal_counts_unless_nodes_may_come_back(
    ask: Any, said: str, nodes: Any, severity: Severity
) -> None:
    """While nodes are away Slurm's forecast refuses what sbatch would take."""
    found = ask(said, code=1, nodes=nodes)
    assert isinstance(found, Finding)
    assert found.severity is severity
    assert said.partition(": ")[2] in found.message


def test_controller_that_is_away_is_no_refusal(ask: Any) -> None:
    """It is an error of its own, for the caller to say."""
    with pytest.raises(SchedulerAwayError):
        ask("sbatch: error: Unable to contact slurm controller (connect failure)", code=1)
