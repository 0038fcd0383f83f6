"""Promises about text that only a real Slurm can keep or break."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.run import Observation
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import observe_jobs
from hpckit.slurm.script import render_batch_script
from hpckit.slurm.submit import submit_job

SHIPPED = Path(__file__).parents[2] / "slurm_templates"
COMMENT = "a 'b' \"c\" $(id) `id` \\ \\\\ \\' #d %j %% é ü 漢 end"

pytestmark = pytest.mark.slurm


@pytest.fixture
def send(
    sandbox: Any, plan_of_one_job: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[str, SlurmCommands]]:
    """Return a function that submits a job and returns its id."""
    commands = SlurmCommands(bin_dir=str(sandbox.bin_dir), environ={"PATH": "/usr/bin:/bin"})

    def _send(folder: Path = tmp_path, **values: Any) -> tuple[str, SlurmCommands]:
        plan = plan_of_one_job(folder, **values)
        text = render_batch_script(plan, plan.jobs[0], [SHIPPED])
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "launch.json").write_text("{}")
        (folder / "job-0.sbatch").write_text(text)
        return submit_job(text, plan.jobs[0], folder, commands), commands

    return _send


def test_comment_arrives_letter_by_letter(send: Callable[..., Any]) -> None:
    """What stands in an #SBATCH line is read by sbatch as it was meant."""
    job, commands = send(comment=COMMENT, additional_parameters=(("hold", True),))
    shown = commands.run("scontrol", "show", "job", job)
    cancel_jobs([job], commands)
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("Comment=")]
    assert line.strip().removeprefix("Comment=") == COMMENT


def test_log_that_cannot_be_opened_is_told(send: Callable[..., Any], sandbox: Any, tmp_path: Path) -> None:
    """A job whose node cannot write the log fails; its observation says why, where Slurm does."""
    job, commands = send(additional_parameters=(("hold", True),))
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").write_text("not a folder")
    commands.run("scontrol", "release", job)

    def seen() -> Observation:
        return observe_jobs([job], commands, datetime.now(UTC))[job]

    sandbox.wait_until(lambda: seen().state.ended, "the job has ended")
    found = seen()
    assert found.state.text == "FAILED"
    assert found.exit_code
    if sandbox.options["release"] == "22.05":
        assert "could not open the log" in found.reason
