"""Writes runs to an SQLite store of MLflow, with its own client.

MLflow cannot delete a value. So an export adds what the store lacks. Where the store has a value
that a restart has undone since, MLflow's run is deleted, and a new one is made.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hpckit.errors import UsageError
from hpckit.features.exporting.exported_run import ExportedRun, Point, Points, Written, build_mlflow_names
from hpckit.model.states import RunState
from hpckit.record.store import make_private_folder
from hpckit.report.selection import parse_overrides

Item = TypeVar("Item")

DATABASE = "mlflow.db"
TAG = "hpckit.run"

_AT_ONCE = 1000
_PARAMS_AT_ONCE = 100
_LONGEST_PARAM = 6000
"""MLflow's own limits on one request."""

_LARGEST = 1.7976931348623157e308
"""What MLflow stores for an infinite number."""

_STATUS = {
    RunState.pending: "SCHEDULED",
    RunState.completed: "FINISHED",
    RunState.failed: "FAILED",
    RunState.cancelled: "KILLED",
    RunState.interrupted: "KILLED",
}

Held = Mapping[tuple[str, int], str]
"""The value at each (key, step), as text that NaN equals, too."""


def export_run(run: ExportedRun, target: Path) -> Written:
    """Write a run to the store in the folder `target`; raises OSError, and UsageError from MLflow.

    All its points are held in memory, to compare them with those of the store.
    """
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    folder = make_private_folder(target).absolute()
    points = Points(run=run)
    held = list(points)
    names = build_mlflow_names({value.key for value in held})
    wanted = {(names[point.key], point.step): point for point in held}
    try:
        client = MlflowClient(tracking_uri=f"sqlite:///{folder / DATABASE}")
        _store_missing_values(client, run, wanted, folder)
    except MlflowException as error:
        raise UsageError(f"MLflow refused run {run.id}: {error}") from error
    lost = points.written - len(wanted)
    return Written(values=len(wanted), left_out=points.left_out + lost)


def _store_missing_values(
    client: MlflowClient, run: ExportedRun, wanted: Mapping[tuple[str, int], Point], folder: Path
) -> None:
    experiment = _find_or_create_experiment(client, run.launch.name, folder)
    name, held = _keep_matching_delete_others(client, experiment, run, wanted)
    if name is None:
        name = _create_run(client, experiment, run)
    missing = [
        Metric(key, point.number, _to_milliseconds(point.at), step)
        for (key, step), point in wanted.items()
        if (key, step) not in held
    ]
    for some in _split_into_batches(missing, _AT_ONCE):
        client.log_batch(name, metrics=some)
    status = _STATUS.get(run.view.state, "RUNNING")
    ended = run.view.record.ended_at
    if run.view.can_no_longer_change:
        client.set_terminated(name, status, None if ended is None else _to_milliseconds(ended.timestamp()))
    else:
        client.update_run(name, status)


def _find_or_create_experiment(client: MlflowClient, name: str, folder: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=(folder / "artifacts").as_uri()))


def _keep_matching_delete_others(
    client: MlflowClient, experiment: str, run: ExportedRun, wanted: Mapping[tuple[str, int], Point]
) -> tuple[str | None, Held]:
    """Return MLflow's run with what it holds, if all of that still does; delete all others."""
    kept: tuple[str | None, Held] = (None, {})
    for found in client.search_runs([experiment], f"tags.`{TAG}` = '{run.safe_name}'"):
        held = _read_stored_values(client, found.info.run_id, found.data.metrics)
        valid = held is not None and all(
            place in wanted and _format_stored_number(wanted[place].number) == text
            for place, text in held.items()
        )
        if held is not None and valid and kept[0] is None:
            kept = (found.info.run_id, held)
        else:
            client.delete_run(found.info.run_id)
    return kept


def _read_stored_values(client: MlflowClient, name: str, keys: Iterable[str]) -> Held | None:
    """Return what a run holds; None if it has two values at one step."""
    found: dict[tuple[str, int], str] = {}
    for key in keys:
        for point in client.get_metric_history(name, key):
            if (key, point.step) in found:
                return None
            found[key, point.step] = _format_stored_number(point.value)
    return found


def _create_run(client: MlflowClient, experiment: str, run: ExportedRun) -> str:
    record = run.view.record
    began = None if record.started_at is None else _to_milliseconds(record.started_at.timestamp())
    tags = {TAG: run.safe_name, "hpckit.launch": run.launch.id, "hpckit.stage": record.stage or ""}
    created = client.create_run(experiment, began, tags=tags, run_name=run.id)
    name = str(created.info.run_id)
    given = parse_overrides(record.overrides)
    names = build_mlflow_names(given)
    params = [Param(names[key], value[:_LONGEST_PARAM]) for key, value in given.items()]
    try:
        for some in _split_into_batches(params, _PARAMS_AT_ONCE):
            client.log_batch(name, params=some, tags=[RunTag("hpckit.folder", record.folder)])
    except MlflowException:
        client.delete_run(name)
        raise
    return name


def _split_into_batches(items: list[Item], size: int) -> Iterable[list[Item]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _format_stored_number(number: float) -> str:
    if math.isnan(number):
        return "nan"
    return repr(max(min(number, _LARGEST), -_LARGEST))
