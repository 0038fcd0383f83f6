"""Goodput as text: a line for a run or a launch, or the parts, interruptions and ratios. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.goodput import Goodput, Interruption, TimeParts
from hpckit.model.moment import format_local_time_to_second, format_slurm_duration, format_time_span
from hpckit.model.states import RoundAction
from hpckit.report.escape import shorten_text
from hpckit.report.rows import RunRow, format_settings_change
from hpckit.report.text import Page, TextTable, format_share_percent
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


def render_run_details(row: RunRow, account: Goodput, *, whole: bool) -> Page:
    """Return what is below the table of a single run: its warnings, history and goodput.

    The goodput is one line, or with `whole` a table of its parts and the measurements.
    """
    page: list[TextTable | str] = [f"warning: {message}" for message in row.warnings]
    page += [f"it asks for {format_settings_change(change)}" for change in row.grown]
    if not account.parts.wall:
        return page
    if whole or _was_interrupted(account):
        page += _render_interruption_history(row, account)
    if whole:
        parts = [_build_time_parts_table(account.parts), *_format_save_and_failure_costs(account)]
        return [*page, "\n" + _format_goodput_ratios(account), *parts]
    return [*page, *format_goodput_line([account])]


def render_launch_goodput(accounts: Sequence[Goodput], *, whole: bool) -> Page:
    """Return the goodput of a launch: a line, with `whole` its parts as well."""
    parts = sum_time_parts(account for account in accounts if account.stepped)
    table = [_build_time_parts_table(parts)] if whole and parts.wall else []
    return [*format_goodput_line(accounts, always=whole), *table]


_SHORT_RUN = timedelta(minutes=1)
"""A shorter run is mostly start-up: it has no line about goodput unless it was interrupted."""

_SECOND = timedelta(seconds=1)
_LOST = {
    "restart": "restarts",
    "lost": "repeated steps",
    "start": "start-up",
    "checkpoint": "checkpoint stall",
}


def format_goodput_line(accounts: Sequence[Goodput], *, always: bool = False) -> list[str]:
    """Return the goodput of these runs together as one line; none if it is not informative.

    `goodput 93.1 % of 2 h 10 min; lost: 4 min restarts, 3 min start-up; waited 2 min`
    """
    known = [account for account in accounts if account.stepped]
    running = _sum_time_part(known, "running")
    interrupted = any(map(_was_interrupted, known))
    if not running or not (always or interrupted or running >= _SHORT_RUN):
        return []
    share = format_share_percent(_sum_time_part(known, "productive") / running)
    line = f"\ngoodput {share} of {format_time_span(running)}"
    spans = sorted(((_sum_time_part(known, name), words) for name, words in _LOST.items()), reverse=True)
    lost = [f"{format_time_span(span)} {words}" for span, words in spans if span >= _SECOND]
    waited = _sum_time_part(known, "queue") + _sum_time_part(known, "idle")
    line += f"; lost: {', '.join(lost)}" if lost else ""
    return [line + (f"; waited {format_time_span(waited)}" if waited >= _SECOND else "")]


def _was_interrupted(account: Goodput) -> bool:
    """Whether there was an interruption that was not simply the end."""
    return any(interruption.action is not RoundAction.end for interruption in account.interruptions)


def _sum_time_part(accounts: Iterable[Goodput], part: str) -> timedelta:
    return sum((getattr(account.parts, part) for account in accounts), timedelta())


def sum_time_parts(accounts: Iterable[Goodput]) -> TimeParts:
    """Return the parts of several runs together."""
    some = list(accounts)
    return TimeParts(**{name: _sum_time_part(some, name) for name in field_names(TimeParts)})


def _render_interruption_history(row: RunRow, account: Goodput) -> Page:
    if not account.interruptions:
        return []
    header = ("at", "attempt", "round", "cause", "where", "step", "then", "what")
    rows = tuple(map(_format_interruption_row, account.interruptions[-SHOWN_INTERRUPTIONS:]))
    page: list[TextTable | str] = ["\n" + _format_interruption_counts(account)]
    page.append(TextTable(header=header, rows=rows))
    earlier = len(account.interruptions) - SHOWN_INTERRUPTIONS
    if earlier > 0:
        page.append(f"… and {earlier} earlier; `hpckit status {row.run} --json` has all")
    return page


def _format_goodput_ratios(account: Goodput) -> str:
    if account.goodput is None:
        return "goodput not known: the run has reported no step"
    parts = account.parts
    words = (
        f"goodput {format_share_percent(account.goodput)} of {format_time_span(parts.running)} on "
        f"its nodes; ETTR {format_share_percent(account.ettr)} of {format_time_span(parts.wall)} "
        "of wall time"
    )
    if account.ettr_expected is None:
        return words
    since, formula = (
        format_share_percent(account.ettr_since_first_step),
        format_share_percent(account.ettr_expected),
    )
    expected = f"expected from its times: {formula} (Daly's formula)"
    return f"{words}\nETTR since the first step {since}; {expected}"


def _build_time_parts_table(parts: TimeParts) -> TextTable:
    rows = [
        (label, format_short_duration(span), f"{format_share_percent(share):>7}", format_share_bar(share))
        for name, label in PART_LABELS.items()
        if (share := (span := getattr(parts, name)) / parts.wall)
    ]
    return TextTable(
        header=("part", "time", "of wall", ""),
        rows=(*rows, ("wall", format_short_duration(parts.wall), "", "")),
    )


def _format_interruption_counts(account: Goodput) -> str:
    kinds = (("failure", account.failures), ("planned interruption", account.planned))
    words = [
        f"{format_count(sum(counts.values()), noun)} "
        f"({', '.join(f'{count} {cause}' for cause, count in counts.items())})"
        for noun, counts in kinds
        if counts
    ]
    tries = f"{format_count(account.rounds, 'round')} in {format_count(account.attempts, 'attempt')}"
    again = "a restart begins at the start: work is repeated unless the program loads its own state"
    repeated = f"steps unknown: none were reported; {again}"
    if account.lost_steps is not None:
        repeated = format_count(account.lost_steps, "repeated step")
    return f"{', '.join(words)} over {tries}; {repeated}"


def _format_interruption_row(one: Interruption) -> tuple[str, ...]:
    where = ["" if one.rank is None else f"rank {one.rank}", f"on {one.node}" if one.node else ""]
    return (
        format_local_time_to_second(one.at),
        str(one.attempt),
        "" if one.round is None else str(one.round),
        one.cause.value,
        " ".join(word for word in where if word),
        "" if one.step is None else str(one.step),
        "" if one.action is None else one.action.replace("_", " "),
        shorten_to_first_line(one.message),
    )


def shorten_to_first_line(message: str) -> str:
    """Return the first line of a message, cut where a table has no more room."""
    line = next(iter(message.strip().splitlines()), "")
    return shorten_text(line, _MESSAGE_WIDTH)


def _format_save_and_failure_costs(account: Goodput) -> Page:
    measured = account.measured
    remarks = []
    if account.saves:
        costs = []
        if measured.interval is not None:
            costs.append(f"one every {format_short_duration(measured.interval)} of training")
        if measured.stall is not None:
            costs.append(f"checkpoint stall {format_short_duration(measured.stall)} each")
        if account.writing_share is not None:
            costs.append(f"{format_share_percent(account.writing_share)} of the time writing")
        saves = f"{format_count(account.saves, 'save')}, {format_byte_size(account.saved_bytes)}"
        remarks.append(f"{saves}: {', '.join(costs)}")
    if account.interruptions:
        noun = "failures" if account.failures else "interruptions"
        spans = {
            "every": measured.mtbf or measured.between_planned,
            "detection": measured.detection,
            "restart": measured.restart,
            "wait": measured.queue,
        }
        told = (f"{word} {format_short_duration(span)}" for word, span in spans.items() if span is not None)
        remarks.append(f"{noun}: {', '.join(told)}")
    return remarks


def format_short_duration(span: timedelta) -> str:
    """Return a duration: below a minute in seconds and tenths (`8.2 s`), else in Slurm's format."""
    seconds = span.total_seconds()
    if seconds >= 60:  # noqa: PLR2004  # a minute
        return format_slurm_duration(span)
    return f"{seconds:.1f} s" if seconds >= 1 or not seconds else f"{seconds:.2g} s"


def format_share_bar(share: float) -> str:
    """Return a share of 1 as a bar, in eighths of a cell; only zero gives an empty bar."""
    eighths = max(round(share * _BAR_CELLS * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()
