"""Verdicts as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.model.counted import format_whole_percent
from hpckit.model.diagnosis.verdict import RunFindings, Straggler, Verdict, VerdictKind, VerdictSeverity
from hpckit.model.plain import to_plain
from hpckit.model.telemetry.rank_steps import TimedPhase
from hpckit.model.telemetry.usage import EnergyBill, RunTelemetry, sum_energy_bills
from hpckit.report.escape import escape_table_cell, shorten_text
from hpckit.report.failures import format_index_ranges
from hpckit.report.rows import RunRow
from hpckit.values import dataclass

_DIGITS = 6
_SEVERITIES = tuple(VerdictSeverity)
_COSTLY = frozenset({VerdictSeverity.high, VerdictSeverity.medium})
_SHOWN_PHASES, _PHASE_NAME = 6, 32


def format_verdicts(found: RunFindings | None) -> list[str]:
    """Return the verdicts on a run as lines, each with its remedy below it."""
    if found is None:
        return []
    return [
        f"\n{format_verdict_kind_and_severity(verdict)}: {verdict.message}\n  {verdict.remedy}"
        for verdict in found.verdicts
    ]


def describe_time_losses(rows: Iterable[RunRow]) -> list[str]:
    """Return a line on runs that lose at least a tenth of their time, and why; empty if none."""
    runs: dict[VerdictKind, list[int]] = {}
    for row in rows:
        for verdict in () if row.findings is None else row.findings.verdicts:
            if verdict.severity in _COSTLY:
                runs.setdefault(verdict.kind, []).append(row.index)
    if not runs:
        return []
    found = ", ".join(
        f"{kind.replace('_', ' ')} (.{format_index_ranges(some)})" for kind, some in runs.items()
    )
    return [f"held back: {found}; `hpckit status RUN` says more"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGroup:
    """Runs with a verdict of one kind; `worst` is the one of them that matters most."""

    worst: Verdict
    example: RunRow
    rows: tuple[RunRow, ...]


def group_verdicts(rows: Iterable[RunRow]) -> list[VerdictGroup]:
    """Return the verdicts on runs by kind, the worst first."""
    found: dict[str, list[tuple[Verdict, RunRow]]] = {}
    for row in rows:
        for verdict in () if row.findings is None else row.findings.verdicts:
            found.setdefault(verdict.kind, []).append((verdict, row))
    groups = []
    for some in found.values():
        worst, example = min(some, key=lambda one: _verdict_sort_key(one[0]))
        groups.append(VerdictGroup(worst=worst, example=example, rows=tuple(r for _, r in some)))
    return sorted(groups, key=lambda group: _verdict_sort_key(group.worst))


def format_verdict_kind_and_severity(one: Verdict) -> str:
    """Return the kind and severity of a verdict: `input bound (high)`."""
    words = one.kind.replace("_", " ")
    return words if one.severity is VerdictSeverity.info else f"{words} ({one.severity})"


def _verdict_sort_key(one: Verdict) -> tuple[int, float]:
    return _SEVERITIES.index(one.severity), -one.loss


def describe_time_losses_by_kind(rows: Sequence[RunRow]) -> list[str]:
    """Return a line for each cause that costs runs at least a tenth of their time, worst first."""
    lines = []
    for group in group_verdicts(rows):
        if group.worst.severity in _COSTLY:
            which = f", run .{format_index_ranges(row.index for row in group.rows)}" if rows[1:] else ""
            more = f"`hpckit status {group.example.run}` says more"
            lines.append(f"held back: {format_verdict_kind_and_severity(group.worst)}{which}; {more}")
    return lines


def format_gpu_usage(found: RunFindings | None) -> list[str]:
    """Return lines on how a run used its GPUs and on its energy; empty if unknown."""
    if found is None:
        return []
    used, bill = found.telemetry, found.energy
    gpus = [
        _format_if_known("{} busy", format_whole_percent(used.gpu_utilization) or None),
        _format_if_known(
            "{:.1f} GB of memory at most", used.gpu_memory_bytes and used.gpu_memory_bytes / 1e9
        ),
        _format_if_known("{:.0f} W", used.power_w),
        _format_if_known(
            "waiting for data {} of each step", format_whole_percent(used.data_wait_share) or None
        ),
    ]
    of_gpus = (used.gpu_utilization, used.gpu_memory_bytes, used.power_w)
    head = "GPUs" if any(share is not None for share in of_gpus) else "steps"
    busy = [word for word in gpus if word]
    lines = [f"{head}: {', '.join(busy)}"] if busy else []
    return [*lines, *_format_user_phase_times(found.phases), *format_energy_line([bill])]


def _format_user_phase_times(phases: Sequence[TimedPhase]) -> list[str]:
    """Return what the run's own code timed, as a line.

    ```text timed: forward 0.31 s a step (62 %); mean of all ranks, including waits for others ```
    """
    words = [
        f"{shorten_text(escape_table_cell(phase.name), _PHASE_NAME)} {phase.step_s:.2g} s a step "
        f"({format_whole_percent(phase.share)})"
        for phase in phases[:_SHOWN_PHASES]
    ]
    left = len(phases) - len(words)
    more = [f"{left} more in `hpckit report`"] if left > 0 else []
    said = "mean of all ranks, including waits for others"
    return [f"timed: {', '.join([*words, *more])}; {said}"] if words else []


def format_unmeasured_gpus(rows: Iterable[RunRow]) -> list[str]:
    """Return a line on runs whose requested GPUs were not measured; empty if there are none."""
    found = [row for row in rows if row.findings is not None and row.findings.lacks_gpu_measurements]
    if not found:
        return []
    which = f".{format_index_ranges(row.index for row in found)}"
    why = "observe=off, no GPU library on the node, parts of GPUs, or no data yet"
    return [f"GPUs not measured in {which}, although requested ({why}): use and energy unknown"]


def format_energy_line(bills: Iterable[EnergyBill]) -> list[str]:
    """Return the energy and costs of these runs together as a line; empty if nothing is known."""
    some = list(bills)
    words = format_energy_and_costs(some[0] if len(some) == 1 else sum_energy_bills(some))
    return [f"energy: {', '.join(words)}"] if words else []


def format_energy_and_costs(bill: EnergyBill) -> list[str]:
    """Return what is known of an energy, in words; empty if that is nothing."""
    if not bill.energy.gpu_s:  # no GPU was measured: what it cost is not known, and not nothing
        return []
    about = "about " if bill.estimated_share > 0 else ""
    kwh, site = bill.kwh, bill.site_kwh
    pue = site / kwh if kwh and site is not None and site != kwh else None
    words = [
        _format_if_known(about + "{:.3g} kWh", kwh),
        "" if pue is None else f"{site:.3g} kWh with cooling and losses (PUE {pue:.3g})",
        _format_if_known("{:.3g} g CO2", bill.carbon_g),
        _format_if_known("{:.2f} in the site's currency", bill.price),
        _format_if_known("{:.3g} kWh of it for restarts and repeated steps", bill.lost_kwh or None),
        _format_if_known("{:.3g} J a step", bill.j_per_step),
        _format_if_known("{:.3g} J a sample", bill.j_per_sample),
    ]
    return [word for word in words if word]


def _format_if_known(form: str, value: float | str | None) -> str:
    return "" if value is None else form.format(value)


def findings_to_json(found: RunFindings | None) -> dict[str, Any]:
    """Return the fields of a run that its telemetry and its record say; null where unknown."""
    return {
        "telemetry": _to_json_with_rounded_floats(RunTelemetry() if found is None else found.telemetry),
        "energy": None if found is None else energy_to_json(found.energy),
        "verdicts": [] if found is None else to_plain(found.verdicts),
        "stragglers": []
        if found is None
        else [_to_json_with_rounded_floats(straggler) for straggler in found.stragglers],
    }


def energy_to_json(bill: EnergyBill) -> dict[str, Any] | None:
    """Return energy and costs as JSON values; None if no GPU was measured."""
    if not bill.energy.gpu_s:
        return None
    plain = _to_json_with_rounded_floats(bill)
    del plain["energy"]
    return {"total_j": bill.kwh and round(bill.energy.total_j, _DIGITS), **plain}


def _to_json_with_rounded_floats(one: Straggler | RunTelemetry | EnergyBill) -> dict[str, Any]:
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in to_plain(one).items()
    }
