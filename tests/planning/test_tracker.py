"""Promises of planning.tracker."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpckit.errors import ConfigError
from hpckit.model.settings import Tracker, TrackerKind, TrackerMode
from hpckit.planning.tracker import (
    TrackedRun,
    build_rank_tracker_env_variables,
    build_tracker_env_variables,
    check_tracker_settings,
    compute_wandb_id,
)

RUN = TrackedRun(run="a-1.0", launch="a-1", stage=None, folder="/l/runs/0", project="/home/p")
WANDB = Tracker(kind=TrackerKind.wandb)
MLFLOW = Tracker(kind=TrackerKind.mlflow)


def test_no_tracker_sets_nothing() -> None:
    """The default changes no environment, of no rank."""
    assert build_tracker_env_variables(Tracker(), RUN, {"WANDB_PROJECT": "x"}) == {}
    assert build_rank_tracker_env_variables(Tracker(), 1, {}) == {}


def test_wandb_gets_the_same_run_of_the_same_id() -> None:
    """Everything follows from the run's id and folder: two attempts have the same variables."""
    assert build_tracker_env_variables(WANDB, RUN, {}) == {
        "WANDB_RUN_ID": compute_wandb_id("a-1.0"),
        "WANDB_RESUME": "allow",
        "WANDB_RUN_GROUP": "a-1",
        "WANDB_NAME": "a-1.0",
        "WANDB_DIR": "/l/runs/0",
        "WANDB_PROJECT": "p",
    }
    assert len(compute_wandb_id("a-1.0")) == 16
    assert compute_wandb_id("a-1.0") != compute_wandb_id("a-1.1")


def test_trackers_are_told_the_commit_of_the_frozen_code() -> None:
    """Their own look would find the checkout of today."""
    frozen = replace(RUN, commit="abc")
    assert build_tracker_env_variables(WANDB, frozen, {})["WANDB_GIT_COMMIT"] == "abc"
    tags = json.loads(build_tracker_env_variables(MLFLOW, frozen, {})["MLFLOW_RUN_CONTEXT"])
    assert tags["mlflow.source.git.commit"] == "abc"


def test_wandb_variables_follow_the_settings_and_the_shell() -> None:
    """The setting comes before the shell's variable, and that before the folder's name."""
    shell = {"WANDB_PROJECT": "of-the-shell"}
    assert build_tracker_env_variables(WANDB, RUN, shell)["WANDB_PROJECT"] == "of-the-shell"
    stated = replace(WANDB, project="stated", mode=TrackerMode.offline)
    found = build_tracker_env_variables(stated, replace(RUN, stage="fit"), shell)
    assert found["WANDB_PROJECT"] == "stated"
    assert found["WANDB_MODE"] == "offline"
    assert found["WANDB_JOB_TYPE"] == "fit"


def test_only_rank_0_logs_unless_env_says_otherwise() -> None:
    """Other ranks are silent; a WANDB_MODE of the user's own env is left alone."""
    assert build_rank_tracker_env_variables(WANDB, 0, {}) == {}
    assert build_rank_tracker_env_variables(WANDB, 1, {}) == {"WANDB_MODE": "disabled"}
    assert build_rank_tracker_env_variables(WANDB, 1, {"WANDB_MODE": "online"}) == {}
    assert build_rank_tracker_env_variables(MLFLOW, 1, {}) == {}


def test_mlflow_gets_tags_and_no_id_of_a_run_that_does_not_exist() -> None:
    """MLFLOW_RUN_ID would make MLflow fail: it resumes a run that its server has."""
    found = build_tracker_env_variables(replace(MLFLOW, uri="http://tracking:5000"), RUN, {})
    assert json.loads(found.pop("MLFLOW_RUN_CONTEXT")) == {
        "hpckit.run": "a-1.0",
        "hpckit.launch": "a-1",
        "mlflow.runName": "a-1.0",
    }
    assert found == {"MLFLOW_EXPERIMENT_NAME": "p", "MLFLOW_TRACKING_URI": "http://tracking:5000"}


@pytest.mark.parametrize(
    ("tracker", "key"),
    [
        (replace(MLFLOW, uri="https://me:hunter2@tracking"), "tracker.uri"),
        (replace(WANDB, uri="http://tracking"), "tracker.uri"),
        (replace(MLFLOW, mode=TrackerMode.offline), "tracker.mode"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(tracker: Tracker, key: str) -> None:
    """One error names the key, and shows no password."""
    with pytest.raises(ConfigError, match=key) as caught:
        check_tracker_settings(tracker)
    assert "hunter2" not in caught.value.message + caught.value.hint
