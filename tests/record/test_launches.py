"""Promises of record.launches: what was frozen reads back, and events fold to records."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpckit.errors import FrozenFolderError, NotFoundError
from hpckit.model import events
from hpckit.model.events import Event
from hpckit.model.failure import Cause
from hpckit.model.goodput import StepProgress
from hpckit.model.launch import Checkpoint, LaunchConfig
from hpckit.model.plan import LaunchPlan
from hpckit.model.states import RunState
from hpckit.record.attempts import read_events_by_attempt, read_progress
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, checkpoint_folder, load_launch, load_run_settings, read_run_records
from hpckit.record.layout import AttemptPaths
from hpckit.record.process import this_host
from hpckit.record.store import append_event, append_json_lines, make_private_folder, write_json

AT = datetime(2026, 1, 2, tzinfo=UTC)
Frozen = Callable[..., Launch]
Planned = Callable[..., LaunchPlan]


def record(launch: Launch, *history: Event) -> None:
    """Append events of the launch."""
    for event in history:
        record_launch_event(launch.paths, event)


def attempt(launch: Launch, index: int, number: int, *history: Event) -> AttemptPaths:
    """Make an attempt with these events."""
    paths = launch.paths.run(index).attempt(number)
    make_private_folder(paths.folder)
    for event in history:
        append_event(paths.events, event)
    return paths


def started(number: int, job: str | None = "7_0") -> events.AttemptStarted:
    """Return the first event of an attempt."""
    return events.AttemptStarted(
        at=AT, attempt=number, job=job, restart_count=0, host="n1", pid=5, started="9"
    )


def test_launch_reads_back_what_was_planned(frozen: Frozen, planned: Planned) -> None:
    """Identity, cluster, jobs and runs of a launch come back equal to the plan's."""
    launch, plan = frozen(3), planned(3)
    assert (launch.id, launch.name, launch.created_at) == (plan.id, plan.name, plan.created_at)
    assert (launch.arguments, launch.python) == (plan.arguments, plan.python)
    assert launch.cluster == plan.cluster
    assert launch.jobs == plan.jobs
    assert [run.overrides for run in launch.runs] == [run.overrides for run in plan.runs]


def test_launch_code_lies_in_its_own_folder(frozen: Frozen, project: Path) -> None:
    """Working folder and Python path lead into the snapshot, not into the project."""
    launch = frozen(1)
    assert launch.code.working_dir == str(launch.folder / "code/sub")
    assert launch.code.python_path == (str(launch.folder / "code/sub"), str(launch.folder / "code"))
    assert launch.code.project == str(project)


def test_settings_read_back_equal(frozen: Frozen, planned: Planned) -> None:
    """A run's settings and configuration come back from its own line of configs/."""
    settings, config = load_run_settings(frozen(2), 1)
    run = planned(2).runs[1]
    assert isinstance(settings, LaunchConfig)
    assert settings == run.settings
    assert config == run.config


def test_launch_missing_is_not_found_and_names_host_and_folder(tmp_path: Path) -> None:
    """Where there is no launch the error says where it looked, and from which host."""
    with pytest.raises(NotFoundError) as caught:
        load_launch(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert this_host() in caught.value.message
    assert "output_dir" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": 1, "code": {}}'])
def test_launch_broken_is_a_frozen_folder_error(frozen: Frozen, text: str) -> None:
    """A launch record that does not read is named with the host that tried."""
    launch = frozen(1)
    launch.paths.launch.write_text(text)
    with pytest.raises(FrozenFolderError) as caught:
        load_launch(launch.folder)
    assert str(launch.paths.launch) in caught.value.message
    assert this_host() in caught.value.message


def test_launch_of_a_newer_version_still_reads(frozen: Frozen) -> None:
    """Keys and events that this version does not know are passed over."""
    launch = frozen(1)
    content = json.loads(launch.paths.launch.read_text())
    content["new"] = content["jobs"][0]["new"] = content["cluster"]["new"] = 1
    launch.paths.launch.write_text(json.dumps(content))
    record(launch, events.CancelRequested(at=launch.created_at, runs=()))
    (file,) = launch.paths.events.iterdir()
    append_json_lines(file, {"v": 2, "event": "from_the_future", "at": "x"})
    again = load_launch(launch.folder)
    assert again.jobs == launch.jobs
    assert read_run_records(again)[0].state is RunState.pending


def test_runs_are_pending_without_any_event(frozen: Frozen) -> None:
    """A rendered launch has runs that wait, with no job."""
    runs = read_run_records(frozen(2))
    assert [run.state for run in runs] == [RunState.pending] * 2
    assert [run.job for run in runs] == [None, None]


def test_runs_of_an_array_have_its_elements_as_jobs(frozen: Frozen) -> None:
    """Run i of an array is element i; a single run is the job itself."""
    array, single = frozen(2), frozen(1, mark="bb")
    record(array, events.Submitted(at=AT, job_index=0, job="7"))
    record(single, events.Submitted(at=AT, job_index=0, job="8", adopted=True))
    assert [run.job for run in read_run_records(array)] == ["7_0", "7_1"]
    assert [run.job for run in read_run_records(single)] == ["8"]


def test_runs_know_that_they_are_to_be_cancelled(frozen: Frozen) -> None:
    """A wish to cancel concerns the runs it names."""
    launch = frozen(2)
    record(launch, events.CancelRequested(at=AT, runs=(1,)))
    assert [run.cancel_requested for run in read_run_records(launch)] == [False, True]


def test_runs_refused_by_the_scheduler_have_failed_with_its_words(frozen: Frozen) -> None:
    """A refusal is the run's failure, until a later submission is accepted."""
    launch = frozen(1)
    record(launch, events.SubmitRefused(at=AT, job_index=0, message="Invalid qos"))
    run = read_run_records(launch)[0]
    assert run.state is RunState.failed
    assert run.failure is not None
    assert (run.failure.cause, run.failure.message) == (Cause.scheduler, "Invalid qos")
    record(launch, events.Submitted(at=AT, job_index=0, job="7"))
    assert read_run_records(launch)[0].state is RunState.pending


def test_runs_show_their_latest_attempt_alone(frozen: Frozen) -> None:
    """An earlier attempt's end does not colour a later one."""
    launch = frozen(1)
    failed = events.AttemptEnded(at=AT, state=RunState.failed, exit_code=1)
    attempt(launch, 0, 1, started(1), failed)
    attempt(launch, 0, 2, started(2))
    run = read_run_records(launch)[0]
    assert (run.state, run.attempt, run.exit_code) == (RunState.running, 2, None)
    assert run.supervisor == ("n1", 5, "9")
    assert run.job == "7_0"


def test_runs_show_step_and_last_metrics(frozen: Frozen) -> None:
    """The step is the latest in progress.json; of each metric the last value counts."""
    launch = frozen(1)
    paths = attempt(launch, 0, 1, started(1), events.StepReached(at=AT, round=0, step=0))
    write_json(paths.progress, {"round": 0, "step": 41, "at": "x"})
    append_json_lines(paths.metrics, {"step": 1, "at": "x", "loss": 2.0, "accuracy": 0.1})
    append_json_lines(paths.metrics, {"step": 2, "at": "x", "loss": 1.0})
    run = read_run_records(launch, metrics=True)[0]
    assert run.step == 41
    assert run.metrics == {"loss": 1.0, "accuracy": 0.1}


def test_runs_are_read_whatever_a_writer_left_half_done(frozen: Frozen) -> None:
    """Torn lines and empty files of a writer that was killed are passed over."""
    launch = frozen(1)
    paths = attempt(launch, 0, 1, started(1))
    with paths.events.open("a") as file:
        file.write('{"v":1,"event":"attempt_en')
    paths.progress.write_text("")
    paths.metrics.write_text('{"loss": 1.0}\n{"loss"')
    run = read_run_records(launch, metrics=True)[0]
    assert (run.state, run.step, run.metrics) == (RunState.running, None, {"loss": 1.0})


def test_runs_can_be_read_one_by_one(frozen: Frozen) -> None:
    """Only the runs asked for are read."""
    assert [run.index for run in read_run_records(frozen(3), [2])] == [2]


def test_attempts_are_read_oldest_first_with_all_their_events(frozen: Frozen) -> None:
    """Every attempt is there by its number, also one that could not write, and past the tenth."""
    launch = frozen(1)
    for number in (11, 2, 1):
        attempt(launch, 0, number, started(number))
    attempt(launch, 0, 3)
    told = list(read_events_by_attempt(launch.paths.run(0)))
    assert told == [(1, (started(1),)), (2, (started(2),)), (3, ()), (11, (started(11),))]
    assert list(read_events_by_attempt(frozen(1, mark="bb").paths.run(0))) == []


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"round": 0, "step": 1, "at": "x"}'])
def test_progress_that_cannot_be_read_is_none(frozen: Frozen, text: str | None) -> None:
    """A torn progress.json, or none, is no obstacle."""
    launch = frozen(1)
    paths = attempt(launch, 0, 1, started(1))
    if text is not None:
        paths.progress.write_text(text)
    assert read_progress(launch.paths.run(0).attempt(1)) is None
    write_json(paths.progress, {"round": 1, "step": 41, "at": AT.isoformat()})
    assert read_progress(launch.paths.run(0).attempt(1)) == StepProgress(round=1, step=41, at=AT)


def test_checkpoint_folder_is_the_runs_own_unless_configured(frozen: Frozen, tmp_path: Path) -> None:
    """State is kept in the run's folder or, with `checkpoint.dir`, in one that it alone has."""
    launch = frozen(2)
    elsewhere = LaunchConfig(checkpoint=Checkpoint(dir=str(tmp_path / "fast")))
    assert checkpoint_folder(launch, 1, LaunchConfig()) == launch.paths.run(1).checkpoints
    assert checkpoint_folder(launch, 1, elsewhere) == tmp_path / "fast" / launch.id / "00001"
