"""The variables by which a user's own tracker code continues the same run after a restart. Pure.

It sets variables only, and imports no tracker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath

from hpckit.errors import ConfigError
from hpckit.model.settings import Tracker, TrackerKind
from hpckit.planning.secrecy import is_secret_variable
from hpckit.values import dataclass

_ID_LENGTH = 16

_TAG = "hpckit.run"
"""The tag by which a run of MLflow is found again."""

_SILENT = {"WANDB_MODE": "disabled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as a tracker knows it: ids of run and launch, and folders of run and project.

    `commit` is that of its frozen code.
    """

    run: str
    launch: str
    stage: str | None
    folder: str
    project: str
    commit: str | None = None


def compute_wandb_id(run: str) -> str:
    """Return the id that a run has in W&B."""
    return hashlib.sha256(run.encode()).hexdigest()[:_ID_LENGTH]


def build_tracker_env_variables(
    tracker: Tracker, run: TrackedRun, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of all ranks of a run; `environ` is what they have otherwise."""
    match tracker.kind:
        case TrackerKind.wandb:
            return _build_wandb_variables(tracker, run, environ)
        case TrackerKind.mlflow:
            return _build_mlflow_variables(tracker, run, environ)
        case TrackerKind.none:
            return {}


def build_rank_tracker_env_variables(tracker: Tracker, rank: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what differs between ranks: only rank 0 logs, unless the user's own `env` says so."""
    if tracker.kind is not TrackerKind.wandb or rank == 0 or not given.keys().isdisjoint(_SILENT):
        return {}
    return _SILENT


def check_tracker_settings(tracker: Tracker) -> None:
    """Raise ConfigError for values that cannot be used."""
    if tracker.uri is not None and is_secret_variable("", tracker.uri):
        raise ConfigError(
            "tracker.uri holds a password, which the launch folder would store as plain text",
            hint="leave it out there, and set env.MLFLOW_TRACKING_USERNAME and "
            "env.MLFLOW_TRACKING_PASSWORD, which are stored separately",
        )
    for key, value, kind in (
        ("tracker.uri", tracker.uri, TrackerKind.mlflow),
        ("tracker.mode", tracker.mode, TrackerKind.wandb),
    ):
        if value is not None and tracker.kind is not kind:
            raise ConfigError(
                f"{key} is {str(value)!r}, but tracker.kind is {tracker.kind}; only {kind} uses it",
                hint=f"choose tracker={kind}, or leave {key} out",
            )


def _build_wandb_variables(tracker: Tracker, run: TrackedRun, environ: Mapping[str, str]) -> dict[str, str]:
    variables = {
        "WANDB_RUN_ID": compute_wandb_id(run.run),
        "WANDB_RESUME": "allow",
        "WANDB_RUN_GROUP": run.launch,
        "WANDB_NAME": run.run,
        "WANDB_DIR": run.folder,
        "WANDB_PROJECT": _choose_project_name(tracker, run, environ.get("WANDB_PROJECT")),
    }
    if run.stage is not None:
        variables["WANDB_JOB_TYPE"] = run.stage
    if run.commit is not None:
        variables["WANDB_GIT_COMMIT"] = run.commit
    if tracker.mode is not None:
        variables["WANDB_MODE"] = tracker.mode.value
    return variables


def _build_mlflow_variables(tracker: Tracker, run: TrackedRun, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what MLflow reads. It has no id for a run that does not exist yet, but tags."""
    tags = {_TAG: run.run, "hpckit.launch": run.launch, "mlflow.runName": run.run}
    if run.commit is not None:
        tags["mlflow.source.git.commit"] = run.commit
    project = _choose_project_name(tracker, run, environ.get("MLFLOW_EXPERIMENT_NAME"))
    variables = {"MLFLOW_EXPERIMENT_NAME": project, "MLFLOW_RUN_CONTEXT": json.dumps(tags)}
    if tracker.uri is not None:
        variables["MLFLOW_TRACKING_URI"] = tracker.uri
    return variables


def _choose_project_name(tracker: Tracker, run: TrackedRun, inherited: str | None) -> str:
    return tracker.project or inherited or PurePath(run.project).name or "hpckit"
