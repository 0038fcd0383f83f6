"""The sixth and the seventh section: what GPUs did and used, and what ranks waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC

from hpckit.model.counted import counted
from hpckit.model.telemetry.energy import EnergyBill, launch_bill
from hpckit.report.document.model import GpuActivity, GpuUsed, RankUsed, ReportDocument
from hpckit.report.document.words import short_name
from hpckit.report.html.charts import Chart, label, legend, pattern
from hpckit.report.html.elements import Cell, Figure, Html, element, paragraph, table
from hpckit.report.html.section import Section, empty_section, section
from hpckit.report.rows import RunRow
from hpckit.report.text import percent

_MOST_RANKS = 64
_RANK_PARTS = (
    ("other work of its own", "#009e73", ""),
    ("waiting for data", "#e69f00", "/"),
    ("waiting for other ranks", "#7f7f7f", "\\"),
    ("checkpoint stall", "#56b4e9", "x"),
)
_GB = 1e9


def gpus_section(document: ReportDocument) -> Section:
    """Return GPUs over time, what each run used of each, and energy with its cost."""
    bills = [(row, row.findings.energy) for row in document.rows if row.findings is not None]
    known = [(row, bill) for row, bill in bills if bill.gpu_hours]
    if document.activity is None and not document.gpus and not known:
        why = "No GPUs: no telemetry of one was recorded (observe=off, no GPU, or not yet)."
        return empty_section("gpus", "GPUs", why)
    parts: list[Html | Chart] = []
    if document.activity is not None:
        parts += _activity(document.activity)
    if document.gpus:
        parts += [element("h3", "Use of each GPU"), _gpu_table(document)]
    if known:
        parts += [
            element("h3", "Energy and cost"),
            _energy_table(known, document),
            _energy_remark(known),
        ]
    return section("gpus", "GPUs", parts)


def _activity(found: GpuActivity) -> Iterator[Html | Chart]:
    step = (found.end - found.begin) / max(len(found.power_w), 1)
    times = [
        (found.begin + step * (place + 0.5)).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        for place in range(len(found.power_w))
    ]
    names = [label(f"{one.node} {one.gpu}", 32) for one in found.lanes]
    axis = {"type": "date", "title": {"text": "UTC"}}
    if found.lanes:
        yield _heat_map(_BUSY, times, names, [one.busy for one in found.lanes])
    if any(one.temperature_c for one in found.lanes):
        yield _heat_map(_WARM, times, names, [one.temperature_c for one in found.lanes])
    if any(filter(None, (share for one in found.lanes for share in one.slowed))):
        yield _heat_map(_SLOWED, times, names, [one.slowed for one in found.lanes])
    elif any(one.slowed for one in found.lanes):
        yield paragraph("Neither heat nor the power brake slowed a GPU.", "remark")
    if found.left_out:
        yield paragraph(f"{counted(found.left_out, 'more GPU')} not drawn.", "remark")
    if any(one is not None for one in found.power_w):
        yield Chart(
            id="chart-gpu-power",
            label="power of all GPUs together over time",
            height=240,
            traces=[
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": times,
                    "y": list(found.power_w),
                    "line": {"color": "#d55e00", "width": 1.6},
                    "hovertemplate": "%{y:.0f} W<br>%{x}<extra></extra>",
                }
            ],
            layout={
                "xaxis": axis,
                "yaxis": {"title": {"text": "W, all GPUs"}, "rangemode": "tozero"},
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeatMap:
    """What a heat map of GPUs over time shows; `of` are its colours from low to high."""

    id: str
    label: str
    title: str
    of: str | tuple[tuple[float, str], ...]
    low: float
    high: float
    form: str
    hover: str


_BUSY = _HeatMap(
    id="chart-gpu-busy",
    label="how busy each GPU was over time",
    title="busy",
    of="Viridis",
    low=0,
    high=1,
    form=".0%",
    hover="busy %{z:.0%}",
)
_WARM = _HeatMap(
    id="chart-gpu-temperature",
    label="how warm each GPU was over time",
    title="°C",
    of=((0, "#313695"), (0.5, "#fee090"), (1, "#a50026")),
    low=20,
    high=95,
    form=".0f",
    hover="%{z:.0f} °C",
)
_SLOWED = _HeatMap(
    id="chart-gpu-slowed",
    label="how much of the time heat or the power brake slowed each GPU",
    title="slowed",
    of="Cividis",
    low=0,
    high=1,
    form=".0%",
    hover="slowed for %{z:.0%} of the time",
)


def _heat_map(
    shown: _HeatMap,
    times: Sequence[str],
    names: Sequence[str],
    rows: Sequence[Sequence[float | None]],
) -> Chart:
    return Chart(
        id=shown.id,
        label=shown.label,
        height=130 + 22 * max(len(names), 2),
        traces=[
            {
                "type": "heatmap",
                "x": times,
                "y": names,
                "z": [list(row) or [None] * len(times) for row in rows],
                "zmin": shown.low,
                "zmax": shown.high,
                "colorscale": shown.of,
                "colorbar": {
                    "title": {"text": shown.title},
                    "tickformat": shown.form,
                    "thickness": 12,
                },
                "hovertemplate": f"%{{y}}<br>%{{x}}<br>{shown.hover}<extra></extra>",
                "hoverongaps": False,
            }
        ],
        layout={
            "xaxis": {"type": "date", "title": {"text": "UTC"}},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        },
    )


def _gpu_table(document: ReportDocument) -> Html:
    header = (
        *("run", "node", "GPU", "kind", "hours", "busy", "memory at most", "of", "power"),
        *("slowed by heat", "slowed by the power limit"),
    )
    return table(
        header,
        [(short_name(document, one.run), *_gpu_cells(one)) for one in document.gpus],
        label="use of each GPU",
    )


def _gpu_cells(one: GpuUsed) -> Sequence[Cell]:
    return (
        one.node,
        one.gpu,
        one.name,
        Figure(f"{one.hours:.2f}", one.hours),
        Figure(percent(one.utilization), one.utilization),
        _bytes(one.memory_peak_bytes),
        _bytes(one.memory_bytes),
        Figure("" if one.power_w is None else f"{one.power_w:.0f} W", one.power_w),
        Figure(percent(one.heat_share), one.heat_share),
        Figure(percent(one.power_share), one.power_share),
    )


def _bytes(size: int | None) -> Figure:
    return Figure("" if size is None else f"{size / _GB:.1f} GB", size)


def _energy_table(bills: Sequence[tuple[RunRow, EnergyBill]], document: ReportDocument) -> Html:
    header = (
        "run",
        "GPU hours",
        "kWh",
        "kWh with cooling and losses",
        "g CO2",
        "price",
        "kWh of restarts and repeated steps",
        "J a step",
    )
    return table(
        header,
        [
            (short_name(document, row.run), *_bill_cells(bill), bill.j_per_step)
            for row, bill in bills
        ],
        label="energy and cost",
        foot=("together", *_bill_cells(launch_bill(bill for _, bill in bills)), None)
        if len(bills) > 1
        else None,
    )


def _bill_cells(bill: EnergyBill) -> tuple[float | None, ...]:
    site = bill.site_kwh if bill.site_kwh != bill.kwh else None
    return (bill.gpu_hours, bill.kwh, site, bill.carbon_g, bill.price, bill.lost_kwh)


def _energy_remark(bills: Sequence[tuple[RunRow, EnergyBill]]) -> Html:
    words = "Energy is that of the GPUs, over all attempts."
    if any(bill.estimated_share > 0 for _, bill in bills):
        words += " Part of it is estimated as power times time."
    if all(bill.price is None for _, bill in bills):
        words += " cluster.price_per_gpu_hour and cluster.carbon_g_per_kwh add price and CO2."
    return paragraph(words, "remark")


def ranks_section(document: ReportDocument) -> Section:
    """Return what the steps of each rank went to, and which ranks are stragglers."""
    if not document.ranks:
        why = "No step times: no rank has reported any (they come with run.steps and observe)."
        return empty_section("ranks", "Ranks", why)
    slow = [one for one in document.ranks if one.slower_by is not None]
    parts: list[Html | Chart] = [_slow_words(slow)]
    chosen = slow[0].run if slow else document.ranks[0].run
    some = [one for one in document.ranks if one.run == chosen]
    parts.append(legend(_RANK_PARTS))
    parts.append(_rank_chart(chosen, some[:_MOST_RANKS]))
    if len(some) > _MOST_RANKS:
        left = counted(len(some) - _MOST_RANKS, "more rank")
        parts.append(paragraph(f"{left} in the table only.", "remark"))
    adds_up = "A rank's own work is waiting for data and other work; the four shares add up."
    return section("ranks", "Ranks", [*parts, _rank_table(document), paragraph(adds_up, "remark")])


def _slow_words(slow: Sequence[RankUsed]) -> Html:
    if not slow:
        return paragraph("No rank was found to be slower than its peers.")
    words = [
        f"rank {one.steps.rank} of {one.run} on {one.steps.node} "
        f"({percent(one.slower_by)} longer for its own work, data included)"
        for one in slow[:5]
    ]
    more = f" and {counted(len(slow) - 5, 'other')}" if len(slow) > len(words) else ""
    return paragraph(f"Slower than their peers: {', '.join(words)}{more}.")


def _rank_parts(one: RankUsed) -> tuple[float, ...]:
    """Return seconds a step, in the order of `_RANK_PARTS`."""
    steps = one.steps
    data, save, wait = (part or 0.0 for part in (steps.data_s, steps.checkpoint_s, steps.waiting_s))
    own = max((steps.working_s or max(steps.seconds - wait - save, 0.0)) - data, 0.0)
    return tuple(part / steps.steps if steps.steps else 0.0 for part in (own, data, wait, save))


def _rank_chart(run: str, ranks: Sequence[RankUsed]) -> Chart:
    names = [f"{one.steps.rank}" + (" (slow)" if one.slower_by else "") for one in ranks]
    values = list(zip(*map(_rank_parts, ranks), strict=True))
    return Chart(
        id="chart-ranks",
        label=f"what the steps of each rank of {run} went to",
        height=320,
        traces=[
            {
                "type": "bar",
                "name": name,
                "x": names,
                "y": [round(value, 6) for value in column],
                "text": [label(one.steps.node, 32) for one in ranks],
                "textposition": "none",
                "hovertemplate": "rank %{x} on %{text}<br>%{y:.4g} s a step",
                "marker": {"color": colour, "pattern": pattern(shape)},
            }
            for (name, colour, shape), column in zip(_RANK_PARTS, values, strict=True)
            if any(column)
        ],
        layout={
            "barmode": "stack",
            "showlegend": False,
            "xaxis": {"type": "category", "title": {"text": f"rank of {label(run)}"}},
            "yaxis": {"title": {"text": "s a step"}, "rangemode": "tozero"},
        },
    )


def _rank_table(document: ReportDocument) -> Html:
    header = ("run", "rank", "node", "steps", "s a step", *(name for name, *_ in _RANK_PARTS))
    return table(
        (*header, "straggler"),
        [(short_name(document, one.run), *_rank_cells(one)) for one in document.ranks],
        label="ranks",
    )


def _rank_cells(one: RankUsed) -> Sequence[Cell]:
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
        *(Figure(percent(share), share) for share in shares),
        "" if one.slower_by is None else f"{percent(one.slower_by)} slower",
    )
