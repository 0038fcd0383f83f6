"""Promises of runtime.agent.printed_log: each printed value is taken once, while a run runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from hpckit.planning.printed_metrics import compile_metric_patterns
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog, read_last_values
from hpckit.runtime.agent.printed_log import PrintedLog


def values_of(attempt: AttemptPaths) -> dict[str, Any]:
    """Return the last value of each name."""
    return {name: last["value"] for name, last in read_last_values(attempt).values.items()}


def rows_of(attempt: AttemptPaths) -> list[Any]:
    """Return step and loss of all rows."""
    rows = map(json.loads, attempt.metrics.read_text().splitlines())
    return [(row["step"], row["loss"], row["round"]) for row in rows]


def test_a_growing_log_is_read_line_by_line(tmp_path: Path) -> None:
    """A line that is cut off waits; a bar that is drawn again counts with its latest value."""
    attempt, log = AttemptPaths(tmp_path), tmp_path / "log"
    printed = PrintedLog(
        log=log, metrics=MetricsLog(paths=attempt), round=1, patterns=compile_metric_patterns(["loss"])
    )
    printed.record_metrics_of_new_lines()  # there is no log yet
    told = []
    for text in (
        "step 1 loss 0.5\nstep 2 lo",
        "ss 0.4\n\xff\nstep 3 loss",
        " 0.3\rstep 4 loss 0.2\rstep 5 loss 0.1\rstep 6 lo",
        "ss 0.05\nstep 6 loss 0.05\n" + "x" * (3 << 20),
        "\nstep 7 loss 0.04",
    ):
        with log.open("a", encoding="latin-1") as file:
            file.write(text)
        printed.record_metrics_of_new_lines()
        told.append(len(rows_of(attempt)))
    assert told == [1, 2, 3, 4, 4]
    printed.record_metrics_of_new_lines(ended=True)
    steps = [(1, 0.5, 1), (2, 0.4, 1), (5, 0.1, 1), (6, 0.05, 1), (7, 0.04, 1)]
    assert rows_of(attempt) == steps
    assert values_of(attempt) == {"loss": 0.04}


def test_several_lines_of_an_epoch_replace_none_of_them(tmp_path: Path) -> None:
    """Only the first one has the epoch as its step: a later one at a step undoes an earlier one."""
    attempt, log = AttemptPaths(tmp_path), tmp_path / "log"
    lines = [f"Epoch: {1 + n // 3} [{n % 3}/3] loss: {9 - n}" for n in range(6)]
    log.write_text("\n".join(lines))
    for number in (0, 1):  # a restart begins anew
        printed = PrintedLog(
            log=log,
            metrics=MetricsLog(paths=attempt),
            round=number,
            patterns=compile_metric_patterns(["loss"]),
        )
        printed.record_metrics_of_new_lines(ended=True)
    steps = [step for step, _, _ in rows_of(attempt)]
    assert steps == 2 * [1, None, None, 2, None, None]
    assert [loss for _, loss, number in rows_of(attempt) if number] == [9, 8, 7, 6, 5, 4]


LAUNCH = ("launch", "experiment=command", "cluster=local", "--wait")
ENDLESS = "(?P<loss>(a+)+)$"
SHORT_WAIT = """
import sys

if any("hpckit.runtime.agent.prefork" in word for word in sys.orig_argv):
    from hpckit.runtime.agent import printed_log

    printed_log._END_S = 0.5
"""


def launched(shell: Any, script: str, wanted: str) -> tuple[str, list[Any]]:
    """Run a script to its end; return what `status` says then, and what `results` says."""
    (shell.cwd / "train.py").write_text(script)
    said = shell(*LAUNCH, "command=[python,train.py]", f"observe.printed_metrics=[{wanted}]")
    assert said.code == 0, said.out + said.err
    status = shell("status", shell.outputs[-1].name)
    assert status.code == 0, status.err
    results = shell("results", shell.outputs[-1].name, "--json")
    assert results.code == 0, results.err
    return status.out + status.err + said.out + said.err, json.loads(results.out)["runs"]


def test_a_completed_run_has_all_its_metrics(shell: Any) -> None:
    """However much it prints at its end: who waits for it gets the last value."""
    script = "for i in range(30_000): print(f'step {i} loss: {30_000 - i}')"
    words, (run,) = launched(shell, script, "loss")
    assert run["metrics"]["loss"] == 1
    assert "observe.printed_metrics" not in words
    (rows,) = shell.outputs[-1].rglob("metrics.jsonl")
    steps = [json.loads(line)["step"] for line in rows.read_text().splitlines()]
    assert steps == list(range(30_000))


@pytest.mark.parametrize(("values", "told"), [("'0.5', 'nan'", True), ("'nan', '0.5'", False)])
def test_a_last_loss_that_is_not_finite_is_told(shell: Any, values: str, told: bool) -> None:  # noqa: FBT001
    """A command of which hpckit knows only what it prints completes, with a warning."""
    script = f"for loss in ({values}): print('train loss:', loss, ' accuracy: 0.1')"
    words, (run,) = launched(shell, script, "train loss,accuracy")
    assert (run["state"], run["metrics"]["accuracy"]) == ("completed", 0.1)
    warning = "the last value that rank 0 printed is not finite: train loss nan"
    assert (warning in words) == told


def test_a_pattern_that_never_ends_ends_no_run(shell: Any) -> None:
    """The agent goes on: the run completes after a wait, and a warning says what is missing."""
    (shell.cwd / "short").mkdir()
    (shell.cwd / "short/sitecustomize.py").write_text(SHORT_WAIT)
    shell.environ["PYTHONPATH"] = str(shell.cwd / "short")
    words, (run,) = launched(shell, "print('a' * 60 + '!')", f"'{ENDLESS}'")
    assert run["state"] == "completed"
    assert "what rank 0 printed was not read to its end" in words


def reader(attempt: AttemptPaths, *wanted: str, before: str = "pass") -> subprocess.Popen[bytes]:
    """Start the process that reads, with other limits if they are named."""
    script = (
        f"import sys; from hpckit.runtime.agent import printed_log as log; {before}; "
        "sys.exit(log.main(*sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, str(attempt.folder), "0", *wanted]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_kernel_ends_a_reader_that_makes_no_progress(tmp_path: Path) -> None:
    """Nobody need be there to do so: its agent may have been killed."""
    log = AttemptPaths(tmp_path).round(0).rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("a" * 60 + "!")
    process = reader(AttemptPaths(tmp_path), ENDLESS, before="log._BLOCK_S = 0.2")
    process.communicate()
    assert process.returncode == -signal.SIGVTALRM


def test_a_reader_ends_with_its_agent_and_says_what_it_could_not_write(tmp_path: Path) -> None:
    """Signals that are for the agent do not end it; a full disk is told, at the end."""
    attempt = AttemptPaths(tmp_path)
    log = attempt.round(0).rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("loss 1\nloss 2")
    process = reader(attempt, "loss", before="log._INTERVAL_S = 0.01")
    until(attempt.metrics.exists)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    assert values_of(attempt) == {"loss": 2}
    attempt.metrics.unlink()
    attempt.metrics.mkdir()
    _, error = reader(attempt, "loss").communicate()
    assert b"Is a directory" in error
