"""What exports to MLflow promise, read back by its own client."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from cli_world import Writer
from training_record import Trained, TrainingRecord, expected_of

from hpckit.errors import UsageError
from hpckit.features.exporting.documents import ExportKind

tracking = pytest.importorskip("mlflow.tracking")
exceptions = pytest.importorskip("mlflow.exceptions")
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
        assert (outcome.values, outcome.left_out) == (4, 1)
        ((_, number),) = points(target, "a")
        assert math.isnan(number)
        ((_, number),) = points(target, "b")
        assert number < -1e308
        assert points(target, "d_1") == [(0, 2)]
        assert points(target, "alone") == [(0, 3)]


def test_mlflow_has_a_metric_for_each_key(tmp_path: Path, export: Any) -> None:
    """Keys that are one in its letters stay two, however often they are exported."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "mlflow"
    Writer(launch=record.launch).start()
    record.log(1, round=0, step=0, **{"acc@1": 0.5, "acc#1": 0.7, "acc_1": 0.9})
    names = set()
    for _ in range(2):
        outcome = export(ExportKind.mlflow, record, target)
        assert (outcome.values, outcome.left_out) == (3, 0)
        run = only_run(target)
        assert sorted(run.data.metrics.values()) == [0.5, 0.7, 0.9]
        assert run.data.metrics["acc_1"] == 0.9
        names.add((run.info.run_id, *sorted(run.data.metrics)))
    assert len(names) == 1


def test_mlflow_takes_keys_that_are_no_paths(tmp_path: Path, export: Any) -> None:
    """One name that it refuses would stop the export of this run and of every later one."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "mlflow"
    Writer(launch=record.launch).start()
    keys = ["/abs", "a//b", "a/../b", "..a", ".", "", "k" * 300, "k" * 301, "a/", "ä\n"]
    record.log(1, round=0, step=0, **dict.fromkeys(keys, 0.5))
    outcome = export(ExportKind.mlflow, record, target)
    assert (outcome.values, outcome.left_out) == (len(keys), 0)
    assert len(only_run(target).data.metrics) == len(keys)


def test_a_run_that_mlflow_refuses_leaves_nothing(
    tmp_path: Path, export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No empty run stays in the store."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "mlflow"

    def refuse(*_: object, **__: object) -> None:
        raise exceptions.MlflowException("no")

    monkeypatch.setattr(tracking.MlflowClient, "log_batch", refuse)
    with pytest.raises(UsageError, match=f"refused run {record.launch.id}.0: no"):
        export(ExportKind.mlflow, record, target)
    store = client(target)
    assert store.search_runs([store.get_experiment_by_name("demo").experiment_id]) == []
