"""The state of runs as OpenMetrics text, for Prometheus and what reads its format. Pure.

Labels are the launch and the run, never overrides: each value of a label is a series of its own.
All families are gauges or counters, which the older text format of the textfile collector has, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpckit.features.exporting.exported_run import ExportedRun
from hpckit.model.goodput import Goodput
from hpckit.model.states import RunState
from hpckit.report.escape import escaped_name
from hpckit.report.rows import RunRow
from hpckit.values import field_names

Labels = dict[str, str]
Sample = tuple[Labels, float]


RunGauges = tuple[ExportedRun, RunRow, Mapping[str, float]]
"""A run, its row with its goodput, and the last value of each metric that was not undone."""


def open_metrics_lines(runs: Sequence[RunGauges]) -> Iterator[str]:
    """Yield the whole exposition, which ends with `# EOF`."""
    rows = [({"launch": run.launch.id, "run": run.id}, row, metrics) for run, row, metrics in runs]
    infos = (
        (labels | {"name": run.launch.name, "stage": row.stage or "", "jobid": row.job or ""}, 1)
        for (run, *_), (labels, row, _) in zip(runs, rows, strict=True)
    )
    yield from _family("hpckit_run_info", "gauge", "What the run is.", infos)
    yield from _family(
        "hpckit_run_state",
        "gauge",
        "1 for the state that the run is in, 0 for all others.",
        (
            (labels | {"state": state.value}, int(row.state is state))
            for labels, row, _ in rows
            for state in RunState
        ),
    )
    yield from _family(
        "hpckit_run_step",
        "gauge",
        "The latest step, from 0.",
        ((labels, row.step) for labels, row, _ in rows if row.step is not None),
    )
    yield from _family(
        "hpckit_run_metric",
        "gauge",
        "The last logged value that no restart has undone.",
        (
            (labels | {"key": key}, number)
            for labels, _, metrics in rows
            for key, number in metrics.items()
        ),
    )
    yield from _account(
        [(labels, row.goodput) for labels, row, _ in rows if row.goodput is not None]
    )
    yield "# EOF\n"


def _account(known: Sequence[tuple[Labels, Goodput]]) -> Iterator[str]:
    yield from _family(
        "hpckit_run_goodput_ratio",
        "gauge",
        "The productive share of the time on the nodes.",
        ((labels, found.goodput) for labels, found in known if found.goodput is not None),
    )
    yield from _family(
        "hpckit_run_time_seconds",
        "gauge",
        "The wall time of the run by what it was spent on. A part may shrink: a restart makes "
        "productive time lost time.",
        (
            (labels | {"part": part}, getattr(found.parts, part).total_seconds())
            for labels, found in known
            for part in field_names(found.parts)
        ),
    )
    yield from _family(
        "hpckit_run_attempts",
        "counter",
        "How many attempts have begun.",
        ((labels, found.attempts) for labels, found in known),
    )
    yield from _family(
        "hpckit_run_failures",
        "counter",
        "How many rounds and attempts failed, by cause.",
        (
            (labels | {"cause": cause.value}, count)
            for labels, found in known
            for cause, count in found.failures.items()
        ),
    )
    yield from _family(
        "hpckit_run_saved_bytes",
        "counter",
        "The size of all checkpoints that were committed.",
        ((labels, found.saved_bytes) for labels, found in known),
    )


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n# HELP {name} {about}\n"
    suffix = "_total" if kind == "counter" else ""
    for labels, number in samples:
        told = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
        yield f"{name}{suffix}{{{told}}} {_number(number)}\n"


def _quoted(text: str) -> str:
    return escaped_name(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return repr(number)
