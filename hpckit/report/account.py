"""Goodput as text: a line for a run or a launch, or the parts, interruptions and ratios. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hpckit.model.counted import counted, size_text
from hpckit.model.goodput import Goodput, Interruption, TimeParts
from hpckit.model.moment import duration, local_second, span_words
from hpckit.model.states import RoundAction
from hpckit.report.escape import shortened
from hpckit.report.rows import RunRow
from hpckit.report.text import Page, TextTable, percent
from hpckit.values import field_names

SHOWN_INTERRUPTIONS = 10
_BAR_CELLS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MESSAGE_WIDTH = 72
PART_LABELS = {
    "productive": "productive",
    "checkpoint": "checkpoint stall",
    "start": "start-up",
    "restart": "restart",
    "lost": "repeated steps",
    "suspended": "suspended",
    "queue": "queue",
    "idle": "ended, not resumed",
}


def run_page(row: RunRow, account: Goodput, *, whole: bool) -> Page:
    """Return what is below the table of a single run: its warnings, history and goodput.

    The goodput is one line, or with `whole` a table of its parts and the measurements.
    """
    page: list[TextTable | str] = [f"warning: {message}" for message in row.warnings]
    if not account.parts.wall:
        return page
    if whole or _began_again(account):
        page += _history(row, account)
    if whole:
        parts = [_parts_table(account.parts), *_remarks(account)]
        return [*page, "\n" + _shares_line(account), *parts]
    return [*page, *goodput_lines([account])]


def launch_page(accounts: Sequence[Goodput], *, whole: bool) -> Page:
    """Return the goodput of a launch: a line, with `whole` its parts as well."""
    parts = summed_parts(account for account in accounts if account.stepped)
    table = [_parts_table(parts)] if whole and parts.wall else []
    return [*goodput_lines(accounts, always=whole), *table]


_SHORT_RUN = timedelta(minutes=1)
"""A shorter run is mostly start-up: it has no line about goodput unless it was interrupted."""

_SECOND = timedelta(seconds=1)
_LOST = {
    "restart": "restarts",
    "lost": "repeated steps",
    "start": "start-up",
    "checkpoint": "checkpoint stall",
}


def goodput_lines(accounts: Sequence[Goodput], *, always: bool = False) -> list[str]:
    """Return the goodput of these runs together as one line; none if it is not informative.

    `goodput 93.1 % of 2 h 10 min; lost: 4 min restarts, 3 min start-up; waited 2 min`
    """
    known = [account for account in accounts if account.stepped]
    running = _sum(known, "running")
    interrupted = any(map(_began_again, known))
    if not running or not (always or interrupted or running >= _SHORT_RUN):
        return []
    share = percent(_sum(known, "productive") / running)
    line = f"\ngoodput {share} of {span_words(running)}"
    spans = sorted(((_sum(known, name), words) for name, words in _LOST.items()), reverse=True)
    lost = [f"{span_words(span)} {words}" for span, words in spans if span >= _SECOND]
    waited = _sum(known, "queue") + _sum(known, "idle")
    line += f"; lost: {', '.join(lost)}" if lost else ""
    return [line + (f"; waited {span_words(waited)}" if waited >= _SECOND else "")]


def _began_again(account: Goodput) -> bool:
    """Whether there was an interruption that was not simply the end."""
    return any(interruption.action is not RoundAction.end for interruption in account.interruptions)


def _sum(accounts: Iterable[Goodput], part: str) -> timedelta:
    return sum((getattr(account.parts, part) for account in accounts), timedelta())


def summed_parts(accounts: Iterable[Goodput]) -> TimeParts:
    """Return the parts of several runs together."""
    some = list(accounts)
    return TimeParts(**{name: _sum(some, name) for name in field_names(TimeParts)})


def _history(row: RunRow, account: Goodput) -> Page:
    if not account.interruptions:
        return []
    header = ("at", "attempt", "round", "cause", "where", "step", "then", "what")
    rows = tuple(map(_interruption_cells, account.interruptions[-SHOWN_INTERRUPTIONS:]))
    page: list[TextTable | str] = ["\n" + _counts_line(account)]
    page.append(TextTable(header=header, rows=rows))
    earlier = len(account.interruptions) - SHOWN_INTERRUPTIONS
    if earlier > 0:
        page.append(f"… and {earlier} earlier; `hpckit status {row.run} --json` has all")
    return page


def _shares_line(account: Goodput) -> str:
    """Return the ratios, each with what it is a share of, and the result of the formula."""
    if account.goodput is None:
        return "goodput not known: the run has reported no step"
    parts = account.parts
    words = (
        f"goodput {percent(account.goodput)} of {span_words(parts.running)} on its nodes; "
        f"ETTR {percent(account.ettr)} of {span_words(parts.wall)} of wall time"
    )
    if account.ettr_expected is None:
        return words
    since, formula = percent(account.ettr_since_first_step), percent(account.ettr_expected)
    expected = f"to be expected of its times: {formula} (Daly's formula)"
    return f"{words}\nETTR since the first step {since}; {expected}"


def _parts_table(parts: TimeParts) -> TextTable:
    rows = [
        (label, span_text(span), f"{percent(share):>7}", bar(share))
        for name, label in PART_LABELS.items()
        if (share := (span := getattr(parts, name)) / parts.wall)
    ]
    return TextTable(
        header=("part", "time", "of wall", ""),
        rows=(*rows, ("wall", span_text(parts.wall), "", "")),
    )


def _counts_line(account: Goodput) -> str:
    """Return how often the run was interrupted, and by which causes."""
    kinds = (("failure", account.failures), ("planned interruption", account.planned))
    words = [
        f"{counted(sum(counts.values()), noun)} "
        f"({', '.join(f'{count} {cause}' for cause, count in counts.items())})"
        for noun, counts in kinds
        if counts
    ]
    tries = f"{counted(account.rounds, 'round')} in {counted(account.attempts, 'attempt')}"
    again = "a restart begins at the start: work is repeated unless the program loads its own state"
    repeated = f"steps unknown: none were reported; {again}"
    if account.lost_steps is not None:
        repeated = counted(account.lost_steps, "repeated step")
    return f"{', '.join(words)} over {tries}; {repeated}"


def _interruption_cells(one: Interruption) -> tuple[str, ...]:
    where = ["" if one.rank is None else f"rank {one.rank}", f"on {one.node}" if one.node else ""]
    return (
        local_second(one.at),
        str(one.attempt),
        "" if one.round is None else str(one.round),
        one.cause.value,
        " ".join(word for word in where if word),
        "" if one.step is None else str(one.step),
        "" if one.action is None else one.action.replace("_", " "),
        first_line(one.message),
    )


def first_line(message: str) -> str:
    """Return the first line of a message, cut where a table has no more room."""
    line = next(iter(message.strip().splitlines()), "")
    return shortened(line, _MESSAGE_WIDTH)


def _remarks(account: Goodput) -> Page:
    """Return the measurements of saves and failures, if there were any."""
    measured = account.measured
    remarks = []
    if account.saves:
        costs = []
        if measured.interval is not None:
            costs.append(f"one every {span_text(measured.interval)} of training")
        if measured.stall is not None:
            costs.append(f"checkpoint stall {span_text(measured.stall)} each")
        if account.writing_share is not None:
            costs.append(f"{percent(account.writing_share)} of the time writing")
        saves = f"{counted(account.saves, 'save')}, {size_text(account.saved_bytes)}"
        remarks.append(f"{saves}: {', '.join(costs)}")
    if account.interruptions:
        noun = "failures" if account.failures else "interruptions"
        spans = {
            "every": measured.mtbf or measured.between_planned,
            "detection": measured.detection,
            "restart": measured.restart,
            "wait": measured.queue,
        }
        told = (f"{word} {span_text(span)}" for word, span in spans.items() if span is not None)
        remarks.append(f"{noun}: {', '.join(told)}")
    return remarks


def span_text(span: timedelta) -> str:
    """Return a duration: below a minute in seconds and tenths (`8.2 s`), else in Slurm's format."""
    seconds = span.total_seconds()
    if seconds >= 60:  # noqa: PLR2004  # a minute
        return duration(span)
    return f"{seconds:.1f} s" if seconds >= 1 or not seconds else f"{seconds:.2g} s"


def bar(share: float) -> str:
    """Return a share of 1 as a bar, in eighths of a cell; only zero gives an empty bar."""
    eighths = max(round(share * _BAR_CELLS * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()
