"""What exports to MLflow promise, read back by its own client."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from cli_world import Writer
from training_record import Trained, TrainingRecord, expected_of

from hpckit.operations.export.kinds import ExportKind

tracking = pytest.importorskip("mlflow.tracking")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def client(target: Path) -> Any:
    """Return MLflow's client of a store."""
    return tracking.MlflowClient(tracking_uri=f"sqlite:///{target / 'mlflow.db'}")


def only_run(target: Path) -> Any:
    """Return the only run there is."""
    store = client(target)
    experiment = store.get_experiment_by_name("demo")
    (found,) = store.search_runs([experiment.experiment_id])
    return found


def points(target: Path, key: str = "loss") -> list[tuple[int, float]]:
    """Return (step, value) of a key in the only run there is."""
    found = client(target).get_metric_history(only_run(target).info.run_id, key)
    return sorted((one.step, one.value) for one in found)


def test_mlflow_has_each_step_once_after_kills(tmp_path: Path, export: Any) -> None:
    """What comes is added to MLflow's run; a restart replaces the run; twice is as once."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "mlflow"
    names = []
    for done in (
        Trained(attempt=1, number=0, first=0, end=15),
        Trained(attempt=1, number=1, first=15, end=18),
        Trained(attempt=2, number=0, first=10, end=20),
    ):
        record.train(done)
        for _ in range(2):
            export(ExportKind.mlflow, record, target)
            assert expected_of(points(target), record)
            names.append(only_run(target).info.run_id)
    assert names[0] == names[1] == names[2] == names[3]
    assert names[4] == names[5] != names[3]
    record.end(2)
    export(ExportKind.mlflow, record, target)
    run = only_run(target)
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"{record.launch.id}.0")
    assert run.data.params == {"lr": "0.1"}


def test_mlflow_takes_odd_values(tmp_path: Path, export: Any) -> None:
    """NaN and infinities are kept, keys get letters that it allows, and nothing is added twice."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "mlflow"
    Writer(launch=record.launch).start()
    record.log(1, round=0, step=0, a="nan", b="-inf", c="text", **{"d@1": 2})
    record.log(1, round=0, step=None, alone=3)
    for _ in range(2):
        outcome = export(ExportKind.mlflow, record, target)
        assert (outcome.written.values, outcome.written.left_out) == (4, 1)
        ((_, number),) = points(target, "a")
        assert math.isnan(number)
        ((_, number),) = points(target, "b")
        assert number < -1e308
        assert points(target, "d_1") == [(0, 2)]
        assert points(target, "alone") == [(0, 3)]
