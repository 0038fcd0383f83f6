"""The study of an adaptive sweep, opened anew for every question, as supervisors do."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.messages import Reported
from hpckit.model.plain import to_plain
from hpckit.model.plan import SweepPoint
from hpckit.model.run import PRUNED
from hpckit.model.search import Axis, AxisKind, DerivedKey, Direction, Pruner, Sampler, Search, Sweep, Trial
from hpckit.model.states import RunState
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.planning.signature import compute_run_signature
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_run_records
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.store import append_event, append_json_lines, make_private_folder
from hpckit.record.trials import read_trial
from hpckit.runtime.study.study import assign_values, open_study, report_end
from hpckit.runtime.supervisor.pruning import make_pruner

optuna = pytest.importorskip("optuna")

AT = datetime(2026, 1, 1, tzinfo=UTC)
AXES = (
    Axis(key="params.x", kind=AxisKind.real, low=1e-5, high=1e-1, log=True),
    Axis(key="params.n", kind=AxisKind.integer, low=1, high=9),
    Axis(key="params.kind", kind=AxisKind.choice, values=("a", [1, 2])),
)
RUNS = 16


def objective(values: Mapping[str, Any]) -> float:
    """Return what a run reports for its values."""
    x, n, kind = (values[axis.key] for axis in AXES)
    return float((math.log10(x) + 3) ** 2 + (n - 5) ** 2 / 10 + (kind == "a"))


@dataclass(frozen=True, slots=True)
class Lab:
    """A launch, and what its runs do."""

    launch: Launch

    def ask(self, run: int) -> Trial:
        """Let a run ask, as it does when an attempt begins."""
        make_private_folder(self.launch.paths.run(run).folder)
        assign_values(self.launch, run)
        trial = read_trial(self.launch.paths.run(run).trial)
        assert trial is not None
        return trial

    def end(self, run: int, state: RunState, reason: str = "", **metrics: Any) -> None:
        """Record an attempt of a run that has ended, without telling the study."""
        paths = self.launch.paths.run(run)
        number = len(list(paths.attempts.iterdir())) + 1 if paths.attempts.exists() else 1
        attempt = make_private_folder(paths.attempt(number).folder)
        failed = state is not RunState.completed
        for event in (
            events.AttemptStarted(
                at=AT, attempt=number, job=None, restart_count=0, host="h", pid=1, started=""
            ),
            events.AttemptEnded(
                at=AT,
                state=state,
                exit_code=int(failed),
                failure=Failure(cause=Cause.exception, message="boom") if failed else None,
                reason=reason,
            ),
        ):
            append_event(paths.attempt(number).events, event)
        if metrics:
            append_json_lines(attempt / "metrics.jsonl", {"step": 0, "at": "", **metrics})

    def complete(self, run: int) -> None:
        """Let a run ask, complete and tell."""
        trial = self.ask(run)
        self.end(run, RunState.completed, loss=objective(trial.values))
        assert report_end(self.launch, run) == ""

    def trials(self) -> list[Any]:
        """Return the trials of the study."""
        with open_study(self.launch) as opened:
            return list(opened.study.get_trials())

    def states(self) -> list[str]:
        """Return the states of the trials, by name."""
        return [trial.state.name for trial in self.trials()]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a frozen launch of runs that search."""
    sweep = Sweep(sampler=Sampler.optuna, samples=RUNS, metric="loss", pruner=Pruner.median)
    settings = LaunchConfig(
        command="./a 0 0",
        params={"x": 0, "n": 0, "kind": ""},
        cluster=Cluster(kind=ClusterKind.local),
        sweep=sweep,
    )
    search = Search(
        axes=AXES,
        followers=(DerivedKey(path=("command",), pieces=("./a ", "params.x", " ", "params.n", "")),),
        metric="loss",
        direction=Direction.minimize,
        pruner=Pruner.median,
        seed=1,
    )
    point = SweepPoint(overrides=(), config=to_plain(settings), settings=settings, search=search)
    plan = build_launch_plan(
        [point] * RUNS,
        identity=LaunchIdentity(id="demo-20260101-000000-ab12", created_at=AT),
        folder=str(tmp_path / "demo-20260101-000000-ab12"),
        arguments=(),
        python="/usr/bin/python3",
    )
    snapshot = CodeSnapshot(root=tmp_path, working_dir=".", python_path=(), files=None, git=None)
    write_frozen_launch(plan, scripts={}, snapshot=snapshot, environment={})
    return Lab(load_launch(Path(plan.folder)))


def test_runs_one_after_another_are_given_what_one_process_would_ask_for(lab: Lab) -> None:
    """The values are those of Optuna's own study with that seed, to the last digit."""
    for run in range(RUNS):
        lab.complete(run)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))

    def own(trial: Any) -> float:
        x = trial.suggest_float("params.x", 1e-5, 1e-1, log=True)
        n = trial.suggest_int("params.n", 1, 9)
        kind = trial.suggest_categorical("params.kind", ("a", "[1, 2]"))
        return objective({"params.x": x, "params.n": n, "params.kind": kind})

    study.optimize(own, n_trials=RUNS)
    ours = lab.trials()
    assert [trial.params for trial in ours] == [trial.params for trial in study.trials]
    assert [trial.value for trial in ours] == [trial.value for trial in study.trials]


def test_run_computes_with_what_it_was_given(lab: Lab) -> None:
    """Its settings, configuration, overrides and signature are those of its values."""
    trial = lab.ask(3)
    settings, config = load_run_settings(lab.launch, 3)
    assert config["params"] == {key.removeprefix("params."): v for key, v in trial.values.items()}
    assert settings.command == f"./a {trial.values['params.x']} {trial.values['params.n']}"
    assert trial.signature == compute_run_signature(config)
    (record,) = read_run_records(lab.launch, [3], metrics=True)
    assert f"params.n={trial.values['params.n']}" in record.overrides
    assert load_run_settings(lab.launch, 4)[1]["params"] == {"x": 0, "n": 0, "kind": ""}


def test_later_attempt_goes_on_with_the_same_trial(lab: Lab) -> None:
    """A killed worker, or a requeue, changes nothing of what a run was given."""
    first = lab.ask(0)
    lab.end(0, RunState.interrupted)
    assert report_end(lab.launch, 0) == ""
    assert lab.ask(0) == first
    assert lab.states() == ["RUNNING"]


def test_trial_begun_by_a_killed_asker_is_gone_on_with(lab: Lab) -> None:
    """What was asked for and never written down is no lost trial, and no repeated one."""
    first = lab.ask(0)
    lab.launch.paths.run(0).trial.unlink()
    assert lab.ask(0) == first
    with open_study(lab.launch) as opened:
        opened.study.ask()
    second = lab.ask(1)
    assert (second.number, lab.states()) == (1, ["RUNNING", "RUNNING"])
    assert second.values != first.values
    assert lab.ask(2).values not in (first.values, second.values)


def test_next_asker_tells_what_a_killed_supervisor_could_not(lab: Lab) -> None:
    """Whoever asks first brings the study up to our own record, once."""
    for run in range(3):
        lab.ask(run)
    lab.end(0, RunState.completed, loss=0.5)
    lab.end(1, RunState.failed)
    lab.ask(3)
    assert lab.states() == ["COMPLETE", "FAIL", "RUNNING", "RUNNING"]
    assert lab.trials()[0].value == 0.5
    assert report_end(lab.launch, 0) == ""
    assert lab.states()[:2] == ["COMPLETE", "FAIL"]


def test_failed_run_that_is_tried_again_is_a_further_trial_with_the_same_values(lab: Lab) -> None:
    """The study keeps the failure, and learns from what the run reports then."""
    first = lab.ask(0)
    lab.end(0, RunState.failed)
    assert report_end(lab.launch, 0) == ""
    again = lab.ask(0)
    assert (again.values, again.number, again.earlier) == (first.values, 1, (0,))
    lab.end(0, RunState.completed, loss=0.25)
    assert report_end(lab.launch, 0) == ""
    assert lab.states() == ["FAIL", "COMPLETE"]
    assert lab.trials()[1].params == lab.trials()[0].params


@pytest.mark.parametrize("loss", ["nan", None, True, math.nan, -math.inf])
def test_run_without_a_number_counts_as_failed_and_says_so(lab: Lab, loss: object) -> None:
    """What is no number cannot be learned from."""
    lab.ask(0)
    lab.end(0, RunState.completed, loss=loss)
    assert "sweep.metric loss was not logged" in report_end(lab.launch, 0)
    assert lab.states() == ["FAIL"]


def test_value_of_a_run_is_what_any_of_its_attempts_logged_last(lab: Lab) -> None:
    """An attempt that only had to end does not hide the result."""
    lab.ask(0)
    lab.end(0, RunState.interrupted, loss=0.75)
    lab.end(0, RunState.completed)
    assert report_end(lab.launch, 0) == ""
    assert lab.trials()[0].value == 0.75


def test_torn_line_of_the_journal_does_not_end_the_study(lab: Lab) -> None:
    """What a full disk cut off is taken away before anything is appended to it."""
    lab.complete(0)
    with lab.launch.paths.journal.open("a") as file:
        file.write('{"op_code":4,"wor')
    lab.complete(1)
    assert lab.states() == ["COMPLETE", "COMPLETE"]


def test_files_of_the_study_are_private(lab: Lab) -> None:
    """Nobody else reads what was found out."""
    lab.complete(0)
    files = [*lab.launch.paths.search.iterdir(), lab.launch.paths.run(0).trial]
    assert {path.name for path in files} >= {"space.json", "study.journal", "sampler.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def _until_reported(lab: Lab, run: int) -> None:
    while not lab.trials()[run].intermediate_values:
        time.sleep(0.05)


async def _verdict(lab: Lab, run: int, value: float) -> bool:
    """Return whether a run that reports this at step 3 is to end."""
    judge = make_pruner(lab.launch, run, load_run_settings(lab.launch, run)[0])
    assert judge is not None
    judge.queue_report_for_study(Reported(step=3, value=value))
    judging = asyncio.create_task(judge.await_prune_decision())
    if value > 1:
        return await judging
    await asyncio.to_thread(_until_reported, lab, run)
    judging.cancel()
    return False


def test_pruner_ends_a_run_that_is_worse_than_the_median_of_the_others(lab: Lab) -> None:
    """Five runs set the median: a better one goes on, a worse one is pruned, and told so."""
    for run in range(5):
        lab.ask(run)
        assert asyncio.run(_verdict(lab, run, 0.5)) is False
        lab.end(run, RunState.completed, loss=0.5)
        report_end(lab.launch, run)
    lab.ask(5)
    lab.ask(6)
    assert asyncio.run(_verdict(lab, 5, 0.1)) is False
    assert asyncio.run(_verdict(lab, 6, 2.0)) is True
    lab.end(6, RunState.completed, PRUNED, loss=2.0)
    assert report_end(lab.launch, 6) == ""
    assert lab.states()[5:] == ["RUNNING", "PRUNED"]
    assert lab.trials()[6].value == 2.0
