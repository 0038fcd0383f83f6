"""An adaptive sweep on a real Slurm: detached, each run asking on its node."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.project import Project

from hpckit.record.launches import load_launch, read_run_records
from hpckit.record.store import read_json_lines
from hpckit.record.trials import read_trial

pytest.importorskip("optuna")
pytestmark = pytest.mark.slurm

RUNS = 6
REPORT = (
    'command=[bash,-c,\'echo "{\\"step\\": 0, \\"loss\\": ${params.x}}" >> '
    "$HPCKIT_ATTEMPT_DIR/metrics.jsonl']"
)


def test_adaptive_sweep_learns_on_the_cluster_with_nobody_logged_in(sandbox: Sandbox, tmp_path: Path) -> None:
    """Runs ask one shared study from several nodes: each a trial of its own, each told once."""
    project = Project(tmp_path / "project")
    project.create()
    project.json(
        *("launch", "-m", "experiment=command", "cluster=sandbox", "code.snapshot=false", REPORT),
        *("+params.x=interval(0,1)", "sweep.sampler=optuna", f"sweep.samples={RUNS}"),
        *("sweep.metric=loss", "sweep.max_concurrent=3"),
    )
    launch = load_launch(project.launch_folder())
    sandbox.wait_until(
        lambda: all(run.state.ended for run in read_run_records(launch)), "all runs have ended"
    )
    given = [read_trial(launch.paths.run(run).trial) for run in range(RUNS)]
    trials = [trial for trial in given if trial is not None]
    assert sorted(trial.number for trial in trials) == list(range(RUNS))
    assert len({trial.values["params.x"] for trial in trials}) == RUNS
    found = project.json("results")
    assert [run["state"] for run in found["runs"]] == ["completed"] * RUNS
    assert found["best"]["value"] == min(trial.values["params.x"] for trial in trials)
    # The last run's supervisor tells after its record has ended; no later one asks.
    journal = launch.paths.journal

    def told() -> int:
        return sum(line.get("state") == 1 for line in read_json_lines(journal))

    sandbox.wait_until(lambda: told() == RUNS, "the study has been told of all runs")
