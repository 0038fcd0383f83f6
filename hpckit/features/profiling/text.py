"""Profiles as text: where the time of each rank's window went, and what took most of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpckit.model.counted import format_count, format_ranges
from hpckit.model.moment import format_local_datetime
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.profile import ProfileAnswer, RankProfile, TopEntry, TraceSummary
from hpckit.model.settings import ProfileTool
from hpckit.report.escape import escape_controls, shorten_text
from hpckit.values import dataclass

_TOP = 10
_TOP_RANKS = 2
"""With more ranks, only that of the slowest is shown in full."""
_NAME = 46
_NODE = 16

_HEADER = ("rank", "node", "steps", "a step", "compute", "comm.", "exposed", "copies", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRank:
    """A rank's part of a profile: its file, if there is one, and its summary or why it has none."""

    result: RankProfile
    file: Path | None = None
    summary: TraceSummary | None = None
    problem: str | None = None


def format_profile(run: str, attempt: int, answer: ProfileAnswer, ranks: Sequence[ProfiledRank]) -> str:
    """Return a profile as text, in 80 columns but for paths."""
    place = f"run {run}, attempt {attempt}, round {answer.round}"
    if not answer.done and not any(rank.result.steps for rank in ranks):
        what = f"{format_count(answer.steps, 'step')} of rank {format_ranges(answer.ranks)}"
        return f"{place}: {what} will be profiled; `hpckit profile {run} --last` shows them"
    lines = [f"{place}, {format_local_datetime(answer.at)}"]
    summed = [(rank.result, rank.summary) for rank in ranks if rank.summary is not None]
    if summed:
        on_gpu = any(summary.on_gpu for _, summary in summed)
        lines += ["", *_format_rank_table(summed), "", *_explain_columns(on_gpu=on_gpu)]
    detailed = summed
    if len(summed) > _TOP_RANKS:
        detailed = [max(summed, key=lambda pair: pair[1].wall_s)]
    for result, summary in detailed:
        whose = "" if len(summed) == 1 else f" of rank {result.rank}"
        lines += ["", *_format_top_entries(summary, whose)]
    problems = [f"rank {rank.result.rank}: {rank.problem}" for rank in ranks if rank.problem]
    lines += ["", *problems] if problems else []
    return "\n".join([*lines, *_format_file_list(answer, ranks)])


def _format_rank_table(ranks: Sequence[tuple[RankProfile, TraceSummary]]) -> list[str]:
    rows = [_HEADER, *(_format_rank_row(result, summary) for result, summary in ranks)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if place == 1 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _format_rank_row(result: RankProfile, summary: TraceSummary) -> tuple[str, ...]:
    first = 0 if result.first_step is None else result.first_step
    parts = (summary.compute_s, summary.communication_s, summary.exposed_s, summary.copy_s, summary.idle_s)
    return (
        str(result.rank),
        shorten_text(result.node, _NODE),
        format_ranges(range(first, first + result.steps)),
        _format_seconds(summary.wall_s / max(result.steps, 1)),
        *(_format_share(part, summary.wall_s) for part in parts),
    )


def _explain_columns(*, on_gpu: bool) -> list[str]:
    """Return what the columns mean: they differ between GPUs and CPUs."""
    if on_gpu:
        busy, idle = "by kernels of the GPU", "the GPU had nothing to do"
    else:
        busy, idle = "by operators of all CPU threads", "no operator ran"
    return [f"Shares of the time, {busy}.", f"Exposed: not hidden by compute. Idle: {idle}."]


def _format_top_entries(summary: TraceSummary, whose: str) -> list[str]:
    what = "kernels" if summary.on_gpu else "operators, own time"
    head = f"{'top ' + what + whose:{_NAME}}  {'total':>9}  {'share':>5}  {'calls':>8}"
    return [head, *(_format_top_entry(entry, summary.wall_s) for entry in summary.top[:_TOP])]


def _format_top_entry(entry: TopEntry, wall_s: float) -> str:
    name = shorten_text(escape_controls(" ".join(entry.name.split())), _NAME)
    share = _format_share(entry.seconds, wall_s)
    return f"{name:{_NAME}}  {_format_seconds(entry.seconds):>9}  {share:>5}  {entry.count:>8}"


def _format_file_list(answer: ProfileAnswer, ranks: Sequence[ProfiledRank]) -> list[str]:
    files = [str(rank.file) for rank in ranks if rank.file is not None]
    if not files:
        return []
    hint = "ui.perfetto.dev opens traces: Open trace file"
    if answer.tool is ProfileTool.nsys:
        hint = "nsys writes its report on its own; `nsys stats FILE` and Nsight Systems read it"
    return ["", *files, hint]


def _format_share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"


def _format_seconds(seconds: float) -> str:
    """Return seconds in a unit that suits: `1.24 s`, `83.1 ms`, `412 us`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:  # noqa: PLR2004  # a millisecond
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us"


def profile_to_json(
    run: str, attempt: int, answer: ProfileAnswer, ranks: Sequence[ProfiledRank]
) -> dict[str, Any]:
    """Return a profile for programs."""
    return {
        "run": run,
        "attempt": attempt,
        **attributes_to_json(answer, "round at id tool done"),
        "ranks": [
            {
                "rank": rank.result.rank,
                "node": rank.result.node or None,
                **attributes_to_json(rank.result, "first_step steps"),
                **attributes_to_json(rank, "trace=file bytes=result.size problem"),
                "summary": rank.summary
                and to_plain(rank.summary) | attributes_to_json(rank.summary, "exposed_s"),
            }
            for rank in ranks
        ],
    }
