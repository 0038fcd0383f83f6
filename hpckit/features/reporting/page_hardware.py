"""The sixth and the seventh section: what GPUs did and used, and what ranks waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from hpckit.features.reporting.document import (
    GpuActivity,
    GpuUsed,
    RankUsed,
    ReportDocument,
    shorten_run_name,
)
from hpckit.features.reporting.page_parts import (
    LABEL_WIDTH,
    Cell,
    Chart,
    Figure,
    Section,
    Table,
    build_share_cell,
    build_table,
    escape_plot_label,
)
from hpckit.model.counted import format_count
from hpckit.model.telemetry.usage import EnergyBill, sum_energy_bills
from hpckit.report.escape import escape_table_cell, shorten_text
from hpckit.report.rows import RunRow
from hpckit.report.text import format_share_percent

_MOST_RANKS = 64
_RANK_PARTS = (
    ("other work of its own", "#009e73", ""),
    ("waiting for data", "#e69f00", "/"),
    ("waiting for other ranks", "#7f7f7f", "\\"),
    ("checkpoint stall", "#56b4e9", "x"),
)
_GB = 1e9


def build_gpus_section(document: ReportDocument) -> Section:
    """Return GPUs over time, what each run used of each, and energy with its cost."""
    bills = [(row, row.findings.energy) for row in document.rows if row.findings is not None]
    known = [(row, bill) for row, bill in bills if bill.gpu_hours]
    found = document.activity
    if found is None and not document.gpus and not known:
        why = "No GPUs: no telemetry of one was recorded (observe=off, no GPU, or not yet)."
        return Section(name="gpus", title="GPUs", why_empty=why)
    lanes = () if found is None else found.lanes
    slowed = any(filter(None, (part for lane in lanes for part in lane.slowed)))
    heat_maps, power = ([], None) if found is None else _build_activity_charts(found, slowed=slowed)
    values = {
        "heat_maps": heat_maps,
        "never_slowed": not slowed and any(lane.slowed for lane in lanes),
        "left": 0 if found is None else found.left_out,
        "power": power,
        "used": _build_gpu_table(document),
        "energy": _build_energy_table(known, document),
        "estimated": any(bill.estimated_share > 0 for _, bill in known),
        "unpriced": all(bill.price is None for _, bill in known),
    }
    charts = [*(chart for chart, _ in heat_maps), *([] if power is None else [power])]
    return Section(name="gpus", title="GPUs", values=values, charts=charts)


def _build_activity_charts(
    found: GpuActivity, *, slowed: bool
) -> tuple[list[tuple[Chart, str]], Chart | None]:
    step = (found.end - found.begin) / max(len(found.power_w), 1)
    times = [
        (found.begin + step * (place + 0.5)).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        for place in range(len(found.power_w))
    ]
    lanes = found.lanes
    names = [escape_plot_label(f"{lane.node} {lane.gpu}", 32) for lane in lanes]
    shown: list[tuple[str, str, Sequence[Sequence[float | None]]]] = []
    if lanes:
        shown.append(("busy", "how busy each GPU was over time", [lane.busy for lane in lanes]))
    if any(lane.temperature_c for lane in lanes):
        rows = [lane.temperature_c for lane in lanes]
        shown.append(("temperature", "how warm each GPU was over time", rows))
    if slowed:
        words = "how much of the time heat or the power brake slowed each GPU"
        shown.append(("slowed", words, [lane.slowed for lane in lanes]))
    heat_maps = [(_build_heat_map(name, times, names, rows), words) for name, words, rows in shown]
    if all(watts is None for watts in found.power_w):
        return heat_maps, None
    values = {"times": times, "power_w": found.power_w}
    return heat_maps, Chart(id="chart-gpu-power", template="gpu_power", height=240, values=values)


def _build_heat_map(
    name: str, times: Sequence[str], gpus: Sequence[str], rows: Sequence[Sequence[float | None]]
) -> Chart:
    return Chart(
        id=f"chart-gpu-{name}",
        template="heat_map",
        height=130 + 22 * max(len(gpus), 2),
        values={
            "shown": name,
            "times": times,
            "names": gpus,
            "rows": [row or [None] * len(times) for row in rows],
        },
    )


def _build_gpu_table(document: ReportDocument) -> Table:
    header = (
        *("run", "node", "GPU", "kind", "hours", "busy", "memory at most", "of", "power"),
        *("slowed by heat", "slowed by the power limit"),
    )
    return build_table(
        header, [(shorten_run_name(document, gpu.run), *_build_gpu_cells(gpu)) for gpu in document.gpus]
    )


def _build_gpu_cells(one: GpuUsed) -> Sequence[Cell]:
    return (
        one.node,
        one.gpu,
        one.name,
        Figure(f"{one.hours:.2f}", one.hours),
        build_share_cell(one.utilization),
        _build_bytes_cell(one.memory_peak_bytes),
        _build_bytes_cell(one.memory_bytes),
        Figure("" if one.power_w is None else f"{one.power_w:.0f} W", one.power_w),
        build_share_cell(one.heat_share),
        build_share_cell(one.power_share),
    )


def _build_bytes_cell(size: int | None) -> Figure:
    return Figure("" if size is None else f"{size / _GB:.1f} GB", size)


def _build_energy_table(bills: Sequence[tuple[RunRow, EnergyBill]], document: ReportDocument) -> Table:
    header = (
        "run",
        "GPU hours",
        "kWh",
        "kWh with cooling and losses",
        "g CO2",
        "price",
        "kWh for restarts and repeated steps",
        "J a step",
    )
    return build_table(
        header,
        [
            (shorten_run_name(document, row.run), *_build_bill_cells(bill), bill.j_per_step)
            for row, bill in bills
        ],
        ("together", *_build_bill_cells(sum_energy_bills(bill for _, bill in bills)), None)
        if len(bills) > 1
        else (),
    )


def _build_bill_cells(bill: EnergyBill) -> tuple[float | None, ...]:
    site = bill.site_kwh if bill.site_kwh != bill.kwh else None
    return (bill.gpu_hours, bill.kwh, site, bill.carbon_g, bill.price, bill.lost_kwh)


def build_ranks_section(document: ReportDocument) -> Section:
    """Return what the steps of each rank went to, and which ranks are stragglers."""
    if not document.ranks:
        why = "No step times: no rank has reported any (run.steps and observe measure them)."
        return Section(name="ranks", title="Ranks", why_empty=why)
    slow = [rank for rank in document.ranks if rank.slower_by is not None]
    run = slow[0].run if slow else document.ranks[0].run
    some = [rank for rank in document.ranks if rank.run == run]
    chart = _build_rank_chart(run, some[:_MOST_RANKS])
    values = {
        "slow": _format_stragglers(slow),
        "legend": _RANK_PARTS,
        "run": run,
        "chart": chart,
        "left": len(some) - _MOST_RANKS,
        "ranks": _build_rank_table(document),
        "phases": _build_user_timed_phases_table(document),
    }
    return Section(name="ranks", title="Ranks", values=values, charts=[chart])


def _build_user_timed_phases_table(document: ReportDocument) -> Table:
    """Return what the code of runs timed itself."""
    rows = [
        (
            shorten_run_name(document, row.run),
            shorten_text(escape_table_cell(phase.name), LABEL_WIDTH),
            phase.step_s,
            build_share_cell(phase.share),
        )
        for row in document.rows
        if row.findings is not None
        for phase in row.findings.phases
    ]
    return build_table(("run", "phase", "s a step", "of a step"), rows)


def _format_stragglers(slow: Sequence[RankUsed]) -> str:
    if not slow:
        return "No rank was found to be slower than its peers."
    words = [
        f"rank {rank.steps.rank} of {rank.run} on {rank.steps.node} "
        f"({format_share_percent(rank.slower_by)} longer for its own work, data included)"
        for rank in slow[:5]
    ]
    more = f" and {format_count(len(slow) - 5, 'other')}" if len(slow) > len(words) else ""
    return f"Slower than their peers: {', '.join(words)}{more}."


def _split_rank_step_time(one: RankUsed) -> tuple[float, ...]:
    """Return seconds a step, in the order of `_RANK_PARTS`."""
    steps = one.steps
    data, save, wait = (part or 0.0 for part in (steps.data_s, steps.checkpoint_s, steps.waiting_s))
    own = max((steps.working_s or max(steps.seconds - wait - save, 0.0)) - data, 0.0)
    return tuple(part / steps.steps if steps.steps else 0.0 for part in (own, data, wait, save))


def _build_rank_chart(run: str, ranks: Sequence[RankUsed]) -> Chart:
    values = list(zip(*map(_split_rank_step_time, ranks), strict=True))
    return Chart(
        id="chart-ranks",
        template="ranks",
        height=320,
        values={
            "run": escape_plot_label(run),
            "ranks": [f"{rank.steps.rank}" + (" (slow)" if rank.slower_by else "") for rank in ranks],
            "nodes": [escape_plot_label(rank.steps.node, 32) for rank in ranks],
            "parts": [
                (*part, [round(value, 6) for value in column])
                for part, column in zip(_RANK_PARTS, values, strict=True)
                if any(column)
            ],
        },
    )


def _build_rank_table(document: ReportDocument) -> Table:
    header = ("run", "rank", "node", "steps with repeated ones", "s a step")
    return build_table(
        (*header, *(name for name, *_ in _RANK_PARTS), "straggler"),
        [(shorten_run_name(document, rank.run), *_build_rank_cells(rank)) for rank in document.ranks],
    )


def _build_rank_cells(one: RankUsed) -> Sequence[Cell]:
    steps = one.steps
    each = steps.seconds / steps.steps if steps.steps else None
    other = steps.working_s if steps.data_s is None else steps.computing_s
    parts = (other, steps.data_s, steps.waiting_s, steps.checkpoint_s)
    shares = [None if part is None or not steps.seconds else part / steps.seconds for part in parts]
    return (
        steps.rank,
        steps.node,
        steps.steps,
        each,
        *map(build_share_cell, shares),
        "" if one.slower_by is None else f"{format_share_percent(one.slower_by)} slower",
    )
