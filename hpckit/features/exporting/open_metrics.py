"""The state of runs as OpenMetrics text, for Prometheus and what reads its format. Pure.

Labels are the launch and the run, never overrides: each value of a label is a series of its own.
All families are gauges or counters, which the older text format of the textfile collector has, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpckit.model.goodput import TimeParts
from hpckit.model.states import RunState
from hpckit.report.escape import escaped_name
from hpckit.report.rows import RunRow
from hpckit.values import dataclass, field_names

Labels = dict[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGauges:
    """A run's row, with its goodput, and the last value of each metric that was not undone."""

    launch: str
    name: str
    row: RunRow
    metrics: Mapping[str, float]

    @property
    def labels(self) -> Labels:
        """Return what names the run in every sample."""
        return {"launch": self.launch, "run": self.row.run}


def open_metrics_lines(runs: Sequence[RunGauges]) -> Iterator[str]:
    """Yield the whole exposition, which ends with `# EOF`."""
    yield from _family("hpckit_run_info", "gauge", "What the run is.", map(_info, runs))
    yield from _family(
        "hpckit_run_state",
        "gauge",
        "1 for the state that the run is in, 0 for all others.",
        (sample for run in runs for sample in _states(run)),
    )
    yield from _family(
        "hpckit_run_step",
        "gauge",
        "The latest step, from 0.",
        ((run.labels, run.row.step) for run in runs if run.row.step is not None),
    )
    yield from _family(
        "hpckit_run_metric",
        "gauge",
        "The last logged value that no restart has undone.",
        ((run.labels | {"key": key}, one) for run in runs for key, one in run.metrics.items()),
    )
    yield from _account(runs)
    yield "# EOF\n"


def _account(runs: Sequence[RunGauges]) -> Iterator[str]:
    known = [(run, run.row.goodput) for run in runs if run.row.goodput is not None]
    yield from _family(
        "hpckit_run_goodput_ratio",
        "gauge",
        "The productive share of the time on the nodes.",
        ((run.labels, found.goodput) for run, found in known if found.goodput is not None),
    )
    yield from _family(
        "hpckit_run_time_seconds",
        "gauge",
        "The wall time of the run by what it was spent on. A part may shrink: a restart makes "
        "productive time lost time.",
        (sample for run, found in known for sample in _parts(run, found.parts)),
    )
    yield from _family(
        "hpckit_run_attempts",
        "counter",
        "How many attempts have begun.",
        ((run.labels, found.attempts) for run, found in known),
    )
    yield from _family(
        "hpckit_run_failures",
        "counter",
        "How many rounds and attempts failed, by cause.",
        (
            (run.labels | {"cause": cause.value}, count)
            for run, found in known
            for cause, count in found.failures.items()
        ),
    )
    yield from _family(
        "hpckit_run_saved_bytes",
        "counter",
        "The size of all checkpoints that were committed.",
        ((run.labels, found.saved_bytes) for run, found in known),
    )


def _info(run: RunGauges) -> Sample:
    about = {"name": run.name, "stage": run.row.stage or "", "jobid": run.row.job or ""}
    return run.labels | about, 1


def _states(run: RunGauges) -> Iterator[Sample]:
    for state in RunState:
        yield run.labels | {"state": state.value}, int(run.row.state is state)


def _parts(run: RunGauges, parts: TimeParts) -> Iterator[Sample]:
    for part in field_names(parts):
        yield run.labels | {"part": part}, getattr(parts, part).total_seconds()


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
