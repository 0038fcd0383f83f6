"""Promises of runtime.agent.printed_log: each printed value is taken once, while a run runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpckit.planning.printed_metrics import printed_patterns
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog, last_values
from hpckit.runtime.agent.printed_log import PrintedLog


def rows_of(attempt: AttemptPaths) -> list[Any]:
    """Return step and loss of all rows."""
    rows = map(json.loads, attempt.metrics.read_text().splitlines())
    return [(row["step"], row["loss"], row["round"]) for row in rows]


def test_a_growing_log_is_read_line_by_line(tmp_path: Path) -> None:
    """A line that is cut off waits; a bar that is drawn again counts with its latest value."""
    attempt, log = AttemptPaths(tmp_path), tmp_path / "log"
    printed = PrintedLog(
        log=log, metrics=MetricsLog(paths=attempt), round=1, patterns=printed_patterns(["loss"])
    )
    printed.read()  # there is no log yet
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
        printed.read()
        told.append(len(rows_of(attempt)))
    assert told == [1, 2, 3, 4, 4]
    printed.read(ended=True)
    steps = [(1, 0.5, 1), (2, 0.4, 1), (5, 0.1, 1), (6, 0.05, 1), (7, 0.04, 1)]
    assert rows_of(attempt) == steps
    assert last_values(attempt).plain() == {"loss": 0.04}


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
            patterns=printed_patterns(["loss"]),
        )
        printed.read(ended=True)
    steps = [step for step, _, _ in rows_of(attempt)]
    assert steps == 2 * [1, None, None, 2, None, None]
    assert [loss for _, loss, number in rows_of(attempt) if number] == [9, 8, 7, 6, 5, 4]
