"""Adaptive sweeps by whole launches: the local executor, real supervisors, a real study."""

from __future__ import annotations

import importlib.util
import json
import time
from typing import Any

import pytest
from tiers import thorough

from hpckit.record.launches import Launch, load_launch, read_run_records
from hpckit.record.trials import read_trial
from hpckit.runtime.study.study import open_study

optuna = pytest.importorskip("optuna")

RUNS = 12
REPORT = """\
import json, os, signal, sys
x, kind = float(sys.argv[1]), sys.argv[2]
folder = os.environ["HPCKIT_ATTEMPT_DIR"]
if os.environ["HPCKIT_RUN_INDEX"] == "4" and folder.endswith("/001"):
    events = [json.loads(line) for line in open(folder + "/events.jsonl")]
    os.kill(events[0]["pid"], signal.SIGKILL)
    signal.pause()
with open(folder + "/metrics.jsonl", "a") as file:
    file.write(json.dumps({"step": 0, "loss": (x - 0.3) ** 2 + (kind == "b")}) + "\\n")
"""
SEARCH = (
    *("launch", "-m", "experiment=command", "cluster=local", "code.snapshot=false"),
    *("+params.x=interval(0,1)", "+params.kind=a,b", f"sweep.samples={RUNS}"),
    *("sweep.sampler=optuna", "sweep.metric=loss", "sweep.seed=1"),
)


@thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_adaptive_sweep_survives_a_killed_worker_and_asks_what_one_process_would(shell: Any) -> None:
    """Its supervisor killed, a run goes on with the same trial; the others ask as ever.

    Until that run is resumed its trial is open, which changes what later ones are given; the
    trials before it are those of Optuna's own study, to the last digit.
    """
    script = shell.cwd / "report.py"
    script.write_text(REPORT)
    command = f"command=[python,{script},'${{params.x}}','${{params.kind}}']"
    said = shell(*SEARCH, command, "--wait")
    assert said.code == 1, said.err
    launch = load_launch(shell.outputs[-1])
    states = [run["state"] for run in json.loads(shell("status", "--json").out)["runs"]]
    assert states == ["completed"] * 4 + ["interrupted"] + ["completed"] * 7
    killed = read_trial(launch.paths.run(4).trial)

    assert shell("resume", "--wait").code == 0
    assert read_trial(launch.paths.run(4).trial) == killed
    assert [run.attempt for run in read_run_records(launch)] == [1] * 4 + [2] + [1] * 7
    trials = [read_trial(launch.paths.run(run).trial) for run in range(RUNS)]
    asked = [trial.values for trial in trials if trial is not None]
    assert asked[:5] == _own_study(5)

    found = json.loads(shell("results", "--json").out)
    losses = [run["metrics"]["loss"] for run in found["runs"]]
    assert losses == sorted(losses)
    assert found["best"]["value"] == losses[0]
    assert "best so far" in shell("results").out


def _own_study(count: int) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))

    def objective(trial: Any) -> float:
        x = trial.suggest_float("params.x", 0, 1)
        kind = trial.suggest_categorical("params.kind", ("a", "b"))
        return float((x - 0.3) ** 2 + (kind == "b"))

    study.optimize(objective, n_trials=count)
    return [trial.params for trial in study.trials]


def test_adaptive_sweep_without_optuna_is_refused_before_anything_is_written(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message with the command that installs it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    said = shell(*SEARCH, "command=[true]", "--dry-run")
    assert (said.code, shell.outputs) == (2, [])
    assert "needs Optuna" in said.err
    assert "pip install '.[optuna]' in hpckit's checkout" in said.err


def test_adaptive_sweep_freezes_runs_alike_and_signs_them_apart(slurm_shell: Any) -> None:
    """What runs will compute is not known yet, so that none passes for another, or for done."""
    said = slurm_shell("render", *SEARCH[1:3], "cluster=slurm", *SEARCH[4:], "command=[true]")
    assert said.code == 0, said.err
    assert "running 4 at a time (sweep.max_concurrent)" in said.err
    launch = load_launch(slurm_shell.outputs[-1])
    assert launch.searched
    assert len({run.signature for run in launch.runs}) == RUNS
    assert "%4" in launch.paths.script(0).read_text()
    lines = launch.paths.configs_file_of_run(0).read_text().splitlines()
    assert lines == [lines[0]] * RUNS


LEAVE = """\
import json, os, sys
with open(os.environ["HPCKIT_ATTEMPT_DIR"] + "/metrics.jsonl", "a") as file:
    file.write(json.dumps({"step": 0, "loss": float(sys.argv[1])}) + "\\n")
sys.exit(75 if os.environ["HPCKIT_RUN_INDEX"] == "0" else 0)
"""


@pytest.mark.slow
def test_run_that_left_is_a_failed_trial_and_never_the_best(shell: Any) -> None:
    """A run that was told to leave, and may not begin again, has no result to learn from."""
    script = shell.cwd / "leave.py"
    script.write_text(LEAVE)
    said = shell(
        *("launch", "-m", "experiment=command", "cluster=local", "code.snapshot=false", "--wait"),
        *("+params.x=interval(0,1)", "sweep.samples=2", "sweep.sampler=optuna", "sweep.seed=1"),
        *("sweep.metric=loss", "recovery.restarts.left=0", f"command=[python,{script},'${{params.x}}']"),
    )
    assert said.code == 1, said.err
    runs = {run["index"]: run for run in json.loads(shell("results", "--json").out)["runs"]}
    assert [runs[0]["state"], runs[1]["state"]] == ["failed", "completed"]
    launch = load_launch(shell.outputs[-1])
    while not _trial(launch, 1).state.is_finished():
        time.sleep(0.1)
    assert _trial(launch, 0).state is optuna.trial.TrialState.FAIL
    assert json.loads(shell("results", "--json").out)["best"]["run"].endswith(".1")


ENDLESS = """\
import time

def main(config, run):
    for step in run.steps(1_000_000):
        run.log(loss=1.0 + config.params.x)
        time.sleep(0.02)
"""


@pytest.mark.training
def test_run_worse_than_the_median_is_pruned_by_all_its_ranks_together(shell: Any) -> None:
    """A run that would go on for hours completes early, says why, and counts as pruned."""
    (shell.cwd / "task.py").write_text(ENDLESS)
    words = ("entry_point=task:main", "resources=cpu_pair", "code.snapshot=false", "seed=1,2")
    said = shell(
        *("render", "-m", "cluster=local", *words, "sweep.samples=1", "sweep.pruner=median"),
        *("sweep.sampler=optuna", "sweep.metric=loss", "+params.x=interval(0,1)"),
    )
    assert said.code == 0, said.err
    launch = load_launch(shell.outputs[-1])
    with open_study(launch) as opened:
        for _ in range(5):
            known = dict.fromkeys(range(64), 0.1)
            opened.study.add_trial(optuna.trial.create_trial(value=0.1, intermediate_values=known))
    assert shell("resume", "--wait").code == 0
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    assert run["total_steps"] == 1_000_000
    assert (run["state"], run["reason"], run["failure"]) == ("completed", "pruned", None)
    assert "completed (pruned)" in shell("results").out
    # The study is told after the record: the supervisor may still be at it.
    while not (trial := _trial(launch, 5)).state.is_finished():
        time.sleep(0.1)
    assert (trial.state.name, trial.value > 1) == ("PRUNED", True)


def _trial(launch: Launch, number: int) -> Any:
    with open_study(launch) as opened:
        return opened.study.trials[number]


def test_the_same_adaptive_sweep_is_not_trained_again(shell: Any) -> None:
    """Launched again it is known as a whole; a larger one learns anew, and says so first."""
    script = shell.cwd / "report.py"
    script.write_text(REPORT)
    command = f"command=[python,{script},'${{params.x}}','${{params.kind}}']"
    large = [word for word in SEARCH if word != "code.snapshot=false"]
    small = [word if "samples" not in word else "sweep.samples=2" for word in large]
    assert shell(*small, command, "--wait").code == 0
    again = shell(*small, command, "--wait")
    assert (again.code, len(shell.outputs)) == (0, 1)
    assert "2 runs skipped" in again.out + again.err
    other = shell(*small, command, "sweep.seed=2", "--dry-run")
    assert other.code == 0, other.err
    larger = shell(*large, command)
    assert (larger.code, len(shell.outputs)) == (2, 1)
    assert "2 completed runs would run again" in larger.err
    assert "sweep.sampler=optuna" in larger.err
