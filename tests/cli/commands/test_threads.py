"""The threads of a rank are those of its resources, whatever shell it was launched from."""

from __future__ import annotations

import json
from typing import Any

import pytest

WORDS = ("experiment=command", "code.snapshot=false", "resources.cpus_per_task=2")
PRINTS = """command='bash -c "echo THREADS $OMP_NUM_THREADS"'"""
SAID = "OMP_NUM_THREADS=1 of this shell is not used: a rank has 2"


@pytest.mark.parametrize(
    ("where", "more", "threads", "warned"),
    [
        ("shell", ("cluster=local",), 2, True),
        ("slurm_shell", ("cluster=slurm",), 2, True),
        ("shell", ("cluster=local", "+env.OMP_NUM_THREADS=3"), 3, False),
        ("slurm_shell", ("cluster=slurm", "+cluster.env.OMP_NUM_THREADS=3"), 3, False),
        ("slurm_shell", ("cluster=slurm", 'cluster.setup=["export OMP_NUM_THREADS=3"]'), 3, True),
        ("shell", ("cluster=local", "resources.cpus_per_task=1"), 1, False),
    ],
)
def test_shell_that_launches_sets_no_threads(
    request: pytest.FixtureRequest, where: str, more: tuple[str, ...], threads: int, *, warned: bool
) -> None:
    """Sites set 1 for sessions; what the configuration and the node say counts."""
    shell: Any = request.getfixturevalue(where)
    shell.environ = {**shell.environ, "OMP_NUM_THREADS": "1"}
    said = shell("launch", "--wait", *WORDS, PRINTS, *more)
    assert said.code == 0, said.err
    assert (SAID in " ".join(said.err.split())) is warned
    assert f"THREADS {threads}\n" in shell("logs").out
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    assert run["state"] == "completed"
