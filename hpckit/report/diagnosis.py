"""Verdicts as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.model.counted import whole_percent
from hpckit.model.diagnosis.verdict import (
    RunFindings,
    Straggler,
    Verdict,
    VerdictKind,
    VerdictSeverity,
)
from hpckit.model.plain import to_plain
from hpckit.model.telemetry.rank_steps import TimedPhase
from hpckit.model.telemetry.usage import EnergyBill, RunTelemetry, launch_bill
from hpckit.report.escape import escaped_cell, shortened
from hpckit.report.failures import shown_ranges
from hpckit.report.rows import RunRow
from hpckit.values import dataclass

_DIGITS = 6
_SEVERITIES = tuple(VerdictSeverity)
_COSTLY = frozenset({VerdictSeverity.high, VerdictSeverity.medium})
_SHOWN_PHASES, _PHASE_NAME = 6, 32


def verdict_lines(found: RunFindings | None) -> list[str]:
    """Return the verdicts on a run as lines, each with its remedy below it."""
    if found is None:
        return []
    return [
        f"\n{verdict_head(verdict)}: {verdict.message}\n  {verdict.remedy}"
        for verdict in found.verdicts
    ]


def held_back_line(rows: Iterable[RunRow]) -> list[str]:
    """Return which runs lose a tenth of their time or more to what, as a line; none if no run."""
    runs: dict[VerdictKind, list[int]] = {}
    for row in rows:
        for verdict in () if row.findings is None else row.findings.verdicts:
            if verdict.severity in _COSTLY:
                runs.setdefault(verdict.kind, []).append(row.index)
    if not runs:
        return []
    found = ", ".join(
        f"{kind.replace('_', ' ')} (.{shown_ranges(some)})" for kind, some in runs.items()
    )
    return [f"held back: {found}; `hpckit status RUN` says more"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGroup:
    """Runs with a verdict of one kind; `worst` is the one of them that matters most."""

    worst: Verdict
    example: RunRow
    rows: tuple[RunRow, ...]


def verdict_groups(rows: Iterable[RunRow]) -> list[VerdictGroup]:
    """Return the verdicts on runs by kind, the worst first."""
    found: dict[str, list[tuple[Verdict, RunRow]]] = {}
    for row in rows:
        for verdict in () if row.findings is None else row.findings.verdicts:
            found.setdefault(verdict.kind, []).append((verdict, row))
    groups = []
    for some in found.values():
        worst, example = min(some, key=lambda one: _weight(one[0]))
        groups.append(VerdictGroup(worst=worst, example=example, rows=tuple(r for _, r in some)))
    return sorted(groups, key=lambda one: _weight(one.worst))


def verdict_head(one: Verdict) -> str:
    """Return the kind and severity of a verdict: `input bound (high)`."""
    words = one.kind.replace("_", " ")
    return words if one.severity is VerdictSeverity.info else f"{words} ({one.severity})"


def _weight(one: Verdict) -> tuple[int, float]:
    return _SEVERITIES.index(one.severity), -one.loss


def held_back_lines(rows: Sequence[RunRow]) -> list[str]:
    """Return a line for each kind of what costs runs a tenth of their time or more, worst first."""
    lines = []
    for group in verdict_groups(rows):
        if group.worst.severity in _COSTLY:
            which = f", run .{shown_ranges(row.index for row in group.rows)}" if rows[1:] else ""
            more = f"`hpckit status {group.example.run}` says more"
            lines.append(f"held back: {verdict_head(group.worst)}{which}; {more}")
    return lines


def usage_lines(found: RunFindings | None) -> list[str]:
    """Return what a run used of its GPUs, and what that comes to, as lines; none if unknown."""
    if found is None:
        return []
    used, bill = found.telemetry, found.energy
    gpus = [
        _said("{} busy", whole_percent(used.gpu_utilization) or None),
        _said("{:.1f} GB of memory at most", used.gpu_memory_bytes and used.gpu_memory_bytes / 1e9),
        _said("{:.0f} W", used.power_w),
        _said("waiting for data {} of each step", whole_percent(used.data_wait_share) or None),
    ]
    of_gpus = (used.gpu_utilization, used.gpu_memory_bytes, used.power_w)
    head = "GPUs" if any(share is not None for share in of_gpus) else "steps"
    busy = [word for word in gpus if word]
    lines = [f"{head}: {', '.join(busy)}"] if busy else []
    return [*lines, *_phase_lines(found.phases), *energy_lines([bill])]


def _phase_lines(phases: Sequence[TimedPhase]) -> list[str]:
    """Return what the run's own code timed, as a line.

    ```text
    timed: forward 0.31 s a step (62 %); mean of all ranks, with waits for others in it
    ```
    """
    words = [
        f"{shortened(escaped_cell(phase.name), _PHASE_NAME)} {phase.step_s:.2g} s a step "
        f"({whole_percent(phase.share)})"
        for phase in phases[:_SHOWN_PHASES]
    ]
    left = len(phases) - len(words)
    more = [f"{left} more in `hpckit report`"] if left > 0 else []
    said = "mean of all ranks, with waits for others in it"
    return [f"timed: {', '.join([*words, *more])}; {said}"] if words else []


def unmeasured_lines(rows: Iterable[RunRow]) -> list[str]:
    """Return that no GPU of some runs was measured although they asked for some; else nothing."""
    found = [row for row in rows if row.findings is not None and row.findings.gpus_unmeasured]
    if not found:
        return []
    which = f".{shown_ranges(row.index for row in found)}"
    why = "observe=off, no library for them on the node, parts of GPUs, or not yet"
    return [f"GPUs: none was measured of {which}, which asked for some ({why}): no use, no energy"]


def energy_lines(bills: Iterable[EnergyBill]) -> list[str]:
    """Return what the energy of runs comes to, together, as a line; none if nothing is known."""
    some = list(bills)
    words = energy_words(some[0] if len(some) == 1 else launch_bill(some))
    return [f"energy: {', '.join(words)}"] if words else []


def energy_words(bill: EnergyBill) -> list[str]:
    """Return what is known of an energy, in words; empty if that is nothing."""
    if not bill.energy.gpu_s:  # no GPU was measured: what it cost is not known, and not nothing
        return []
    about = "about " if bill.estimated_share > 0 else ""
    kwh, site = bill.kwh, bill.site_kwh
    pue = site / kwh if kwh and site is not None and site != kwh else None
    words = [
        _said(about + "{:.3g} kWh", kwh),
        "" if pue is None else f"{site:.3g} kWh with cooling and losses (PUE {pue:.3g})",
        _said("{:.3g} g CO2", bill.carbon_g),
        _said("{:.2f} in the site's currency", bill.price),
        _said("{:.3g} kWh of it for restarts and repeated steps", bill.lost_kwh or None),
        _said("{:.3g} J a step", bill.j_per_step),
        _said("{:.3g} J a sample", bill.j_per_sample),
    ]
    return [word for word in words if word]


def _said(form: str, value: float | str | None) -> str:
    return "" if value is None else form.format(value)


def findings_object(found: RunFindings | None) -> dict[str, Any]:
    """Return the fields of a run that its telemetry and its record say; null where unknown."""
    return {
        "telemetry": _rounded(RunTelemetry() if found is None else found.telemetry),
        "energy": None if found is None else energy_object(found.energy),
        "verdicts": [] if found is None else to_plain(found.verdicts),
        "stragglers": [] if found is None else [_rounded(one) for one in found.stragglers],
    }


def energy_object(bill: EnergyBill) -> dict[str, Any] | None:
    """Return what energy comes to; None if no GPU was measured."""
    if not bill.energy.gpu_s:
        return None
    plain = _rounded(bill)
    del plain["energy"]
    return {"total_j": bill.kwh and round(bill.energy.total_j, _DIGITS), **plain}


def _rounded(one: Straggler | RunTelemetry | EnergyBill) -> dict[str, Any]:
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in to_plain(one).items()
    }
