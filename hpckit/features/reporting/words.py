"""The sentences of a report, which its HTML and its Markdown share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpckit.features.reporting.document import ReportDocument
from hpckit.model.counted import counted
from hpckit.model.goodput import Interruption
from hpckit.model.launch import Direction
from hpckit.model.moment import local_moment
from hpckit.model.states import RunState
from hpckit.model.telemetry.usage import EnergyBill, launch_bill
from hpckit.report.account import goodput_lines
from hpckit.report.best import best_row
from hpckit.report.diagnosis import VerdictGroup, energy_words
from hpckit.report.failures import shown_ranges
from hpckit.report.rows import RunRow
from hpckit.report.text import count_line, number

_OPEN = frozenset({RunState.pending, RunState.running})
_FEW = 3


def verdict_runs(group: VerdictGroup, total: int) -> str:
    """Return which of the runs a verdict is about; empty for a report of one run."""
    if total == 1:
        return ""
    which = runs_words(group.rows)
    return (
        which if len(group.rows) == 1 else f"{which}; the numbers are those of {group.example.run}"
    )


def runs_words(rows: Sequence[RunRow]) -> str:
    """Return runs in a few words: their ids, or if there are many, how many of which indices."""
    if len(rows) <= _FEW:
        return ", ".join(row.run for row in rows)
    launches = {row.run.rpartition(".")[0] for row in rows}
    if len(launches) > 1:
        return f"{counted(len(rows), 'run')} of {counted(len(launches), 'launch')}"
    return f"{counted(len(rows), 'run')} ({shown_ranges(row.index for row in rows)})"


def no_verdict_words(rows: Sequence[RunRow]) -> str:
    """Return why there is no verdict."""
    if not any(row.attempt for row in rows):
        return "No verdict: no run has begun."
    measured = [
        row
        for row in rows
        if row.findings is not None and row.findings.telemetry.gpu_utilization is not None
    ]
    if measured:
        return "No verdict: nothing that was measured holds these runs back."
    return (
        "No verdict: neither restarts nor saves cost much, and there are too few measurements of "
        "GPUs and steps to say more."
    )


def summary_words(document: ReportDocument) -> list[str]:
    """Return a few sentences on how the runs ended: states, goodput, energy."""
    rows = document.rows
    going = any(row.state in _OPEN for row in rows)
    states = count_line([row.state for row in rows])
    lines = [f"{states}; some have not ended yet" if going else states]
    accounts = [row.goodput for row in rows if row.goodput is not None]
    lines += [line.strip() for line in goodput_lines(accounts, always=True)]
    lines += _energy_sentence(row.findings.energy for row in rows if row.findings is not None)
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def _energy_sentence(bills: Iterable[EnergyBill]) -> list[str]:
    """Return the energy of runs as a sentence; none if nothing is known."""
    together = launch_bill(bills)
    words = energy_words(together)
    hours = f"{together.gpu_hours:.3g} GPU hours"
    return [", ".join([f"{hours}: {words[0]}", *words[1:]])] if words else []


def best_words(document: ReportDocument) -> list[str]:
    """Return which run is the best, and by what; none for a single run."""
    goal = document.goal
    if goal is None or len(document.rows) == 1:
        return []
    best = best_row(document.results.rows, goal)
    side = "lowest" if goal.direction is Direction.minimize else "highest"
    by = f"the {side} {goal.metric} at its end"
    if best is None:
        return [f"No run has completed with a {goal.metric}, so there is no best run."]
    given = " ".join(f"{key}={value}" for key, value in best.overrides.items())
    guess = "; the name of the metric tells which is better" if goal.guessed else ""
    run = f"{best.run} ({given})" if given else best.run
    return [f"Best run: {run} with {by}, {number(best.metrics[goal.metric])}{guess}."]


def interruptions(rows: Iterable[RunRow]) -> list[tuple[RunRow, Interruption]]:
    """Return the interruptions that runs survived or ended with."""
    return [
        (row, one) for row in rows if row.goodput is not None for one in row.goodput.interruptions
    ]


def short_name(document: ReportDocument, run: str) -> str:
    """Return a run's name beside others: its id, or `.3` if there is one launch."""
    several = len(document.launches) > 1
    return run if several else f".{run.rpartition('.')[2]}"


def written_words(document: ReportDocument) -> str:
    """Return when the report was written, and by what."""
    return f"written {local_moment(document.written_at)} by hpckit {document.version}"
