"""Submitting a job as `launch` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.script import render_batch_script
from hpckit.slurm.submit import submit_job

SHIPPED = Path(__file__).parents[2] / "slurm_templates"


@pytest.fixture
def send(plan_of_one_job: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """Return a function that freezes a job as `launch` does and submits it."""

    def _send(commands: SlurmCommands, **values: Any) -> str:
        folder = tmp_path / "launch"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_text("{}")
        plan = plan_of_one_job(folder, **{"python": "true", **values})
        text = render_batch_script(plan, plan.jobs[0], [SHIPPED])
        (folder / "job-0.sbatch").write_text(text)
        return submit_job(text, plan.jobs[0], folder, commands)

    return _send
