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
