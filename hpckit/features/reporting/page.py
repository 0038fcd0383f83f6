"""The whole report as one HTML file that asks nothing of any other. Pure but for its templates.

Scripts run by their hash alone. What users named is text: in the page it is escaped, and the charts
get it as JSON in which no `<` is left.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from hpckit.features.reporting.document import ReportDocument, format_written_by, shorten_run_name
from hpckit.features.reporting.page_curves import build_curves_section, build_timeline_section
from hpckit.features.reporting.page_hardware import build_gpus_section, build_ranks_section
from hpckit.features.reporting.page_outcome import (
    build_outcome_section,
    build_provenance_section,
    build_verdicts_section,
)
from hpckit.features.reporting.page_parts import (
    VIRIDIS,
    Chart,
    Figure,
    Section,
    Table,
    build_table,
    build_value_cell,
    escape_plot_label,
)
from hpckit.model.counted import format_count
from hpckit.model.plain import replace_nan_with_null
from hpckit.report.escape import escape_controls
from hpckit.report.results import Results, list_shown_column_names, list_shown_row_values
from hpckit.report.text import format_number
from hpckit.values import replace

if TYPE_CHECKING:
    import jinja2

GENERATOR = "hpckit report"
"""What a file has to say at its beginning to be replaced without being named."""


def render_page_chunks(
    document: ReportDocument, plotly: str, *, refresh_s: float | None = None
) -> Iterator[str]:
    """Yield the page, piece by piece; `plotly` is the text of plotly.js."""
    templates = load_page_templates()
    scripts = [_make_script_safe(plotly), _make_script_safe(_read_template_file("page.js"))]
    sections = [make(document) for make in _SECTIONS]
    charts = [
        {
            "id": chart.id,
            "height": chart.height,
            **json.loads(templates.get_template(f"charts/{chart.template}.json.j2").render(chart.values)),
        }
        for section in sections
        for chart in section.charts
    ]
    yield from templates.get_template("page.html.j2").generate(
        title=document.title,
        written=format_written_by(document)[1:],
        generator=GENERATOR,
        policy=build_content_security_policy(scripts),
        refresh_s=refresh_s,
        style=_read_template_file("page.css"),
        sections=sections,
        charts=dump_html_safe_json(charts),
        scripts=scripts,
    )


def load_page_templates() -> jinja2.Environment:
    """Return the templates: what no template wrote is shown as text, control characters too."""
    # Imported here: help, and a report in another form, have nothing to render.
    module = importlib.import_module("jinja2")
    templates: jinja2.Environment = module.Environment(
        loader=module.PackageLoader("hpckit.features.reporting"),
        autoescape=True,
        undefined=module.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else escape_controls(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["counted"] = format_count
    return templates


def dump_html_safe_json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in; NaN and infinite numbers are null."""
    text = json.dumps(replace_nan_with_null(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def build_content_security_policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: these scripts, styles and pictures of the page itself."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _make_script_safe(text: str) -> str:
    """Return a script that a browser reads as it is hashed, and that does not end its element."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _read_template_file(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


_MOST_AXES = 8
_MOST_CELLS = 16_000
"""Of all metrics in the table of results."""
_LEAST_METRICS = 8
_MOST_TICKS = 12
_LOG_RATIO = 50.0
_HEIGHT = 420


def build_sweep_section(document: ReportDocument) -> Section:
    """Return the table of results, and a line for each run through its values."""
    results, metric = document.results, _choose_goal_or_first_metric(document)
    no_sweep = ""
    if not results.overrides:
        one = "the report has one run" if len(results.rows) == 1 else "no override differs"
        no_sweep = f"No sweep: {one}."
    if no_sweep and not results.metrics:
        return Section(name="sweep", title="Sweep", why_empty=no_sweep)
    chart = None if no_sweep else _build_sweep_chart(document)
    kept = _choose_shown_metrics(document)
    values = {
        "no_sweep": no_sweep,
        "chart": chart,
        "metric": metric,
        "axes_drawn": _MOST_AXES - 1,
        "axes_left": len(results.overrides) > _MOST_AXES - 1,
        "results": _build_results_table(replace(results, metrics=kept)),
        "metrics_left": len(results.metrics) - len(kept),
    }
    charts = () if chart is None else (chart,)
    return Section(name="sweep", title="Sweep", values=values, charts=charts)


def _choose_shown_metrics(document: ReportDocument) -> tuple[str, ...]:
    """Return the metrics that the table has: a thousand runs fit into a report."""
    results, first = document.results, _choose_goal_or_first_metric(document)
    most = max(_MOST_CELLS // max(len(results.rows), 1), _LEAST_METRICS)
    kept = set(sorted(results.metrics, key=lambda name: name != first)[:most])
    return tuple(name for name in results.metrics if name in kept)


def _build_results_table(results: Results) -> Table:
    rows = [
        [*map(build_value_cell, line[:-1]), Figure(line[-1], row.wall_s)]
        for line, row in zip(list_shown_row_values(results), results.rows, strict=True)
    ]
    return build_table(list_shown_column_names(results), rows)


def _choose_goal_or_first_metric(document: ReportDocument) -> str | None:
    if document.goal is not None:
        return document.goal.metric
    return next(iter(document.results.metrics), None)


class _Axis(NamedTuple):
    """An axis: where each run is on it (0 to 1, null without a value), and what stands where."""

    name: str
    places: tuple[float | None, ...]
    ticks: tuple[tuple[float, str], ...]


def _build_sweep_chart(document: ReportDocument) -> Chart | None:
    """Return the chart; None if there is no second axis to draw a line to."""
    rows, metric = document.results.rows, _choose_goal_or_first_metric(document)
    keys = document.results.overrides[: _MOST_AXES - 1]
    axes = [_build_axis(key, [row.overrides.get(key) for row in rows]) for key in keys]
    if metric is not None:
        axes.append(_build_axis(metric, [row.metrics.get(metric) for row in rows]))
    if len(axes) < 2:  # noqa: PLR2004  # a line needs two ends
        return None
    names = [escape_plot_label(shorten_run_name(document, row.run)) for row in rows]
    colours = axes[-1].places if metric is not None else tuple(None for _ in rows)
    return Chart(
        id="chart-sweep",
        template="sweep",
        height=_HEIGHT,
        values={
            "names": [escape_plot_label(axis.name, 24) for axis in axes],
            "ticks": [(place, at, words) for place, axis in enumerate(axes) for at, words in axis.ticks],
            "named": len(rows) <= MOST_NAMED,
            "width": 2.0 if len(rows) <= len(VIRIDIS) * 5 else 1.0,
            "shades": _group_lines_by_shade(names, axes, colours),
        },
    )


def _build_axis(name: str, values: Sequence[Any]) -> _Axis:
    """Return the axis of an override or a metric: of numbers if all are, else of texts."""
    numbers = [_parse_finite_number(value) for value in values]
    if all(one is not None for one, value in zip(numbers, values, strict=True) if value is not None):
        known = [number_ for number_ in numbers if number_ is not None]
        if known:
            return _build_number_axis(name, numbers, known)
    texts = [None if value is None else str(value) for value in values]
    kinds = sorted({text for text in texts if text is not None})
    last = max(len(kinds) - 1, 1)
    at = {text: place / last for place, text in enumerate(kinds)}
    few = kinds if len(kinds) <= _MOST_TICKS else [kinds[0], kinds[-1]]
    places = tuple(None if text is None else at[text] for text in texts)
    return _Axis(name, places, tuple((at[text], escape_plot_label(text, 16)) for text in few))


def _build_number_axis(name: str, values: Sequence[float | None], known: Sequence[float]) -> _Axis:
    low, high = min(known), max(known)
    log = low > 0 and high / low > _LOG_RATIO
    begin, end = (math.log(low), math.log(high)) if log else (low, high)
    width = (end - begin) or 1.0

    def place(value: float) -> float:
        return round(((math.log(value) if log else value) - begin) / width, 4)

    kinds = sorted(set(known))
    between = [begin + (end - begin) * part / 4 for part in (1, 2, 3)]
    between = [math.exp(exponent) for exponent in between] if log else between
    few = kinds if len(kinds) <= _MOST_TICKS else [low, *between, high]
    places = tuple(None if value is None else place(value) for value in values)
    return _Axis(name, places, tuple((place(value), format_number(value)) for value in few))


def _parse_finite_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _group_lines_by_shade(
    names: Sequence[str], axes: Sequence[_Axis], colours: Sequence[float | None]
) -> list[Mapping[str, Any]]:
    """Return a line for each shade of colour, null without one, with gaps between its runs."""
    shades: dict[str | None, list[int]] = {}
    order = _compute_percentile_ranks(colours)
    for place in range(len(names)):
        rank = order.get(place)
        shade = None if rank is None else VIRIDIS[min(int(rank * len(VIRIDIS)), len(VIRIDIS) - 1)]
        shades.setdefault(shade, []).append(place)
    return [
        {
            "colour": shade,
            "x": [x for _ in some for x in (*range(len(axes)), None)],
            "y": [y for place in some for y in (*(axis.places[place] for axis in axes), None)],
            "names": [t for place in some for t in (*[names[place]] * len(axes), "")],
        }
        for shade, some in shades.items()
    ]


MOST_NAMED = 200
"""With more runs, the lines do not show their names: nobody could point at one."""


def _compute_percentile_ranks(values: Sequence[float | None]) -> dict[int, float]:
    """Return where each value stands among all, from 0 to 1: so that outliers spoil no colours."""
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    last = max(len(known) - 1, 1)
    first: dict[float, float] = {}
    for rank, (value, _) in enumerate(known):
        first.setdefault(value, rank / last)
    return {place: first[value] for value, place in known}


_SECTIONS = (
    build_verdicts_section,
    build_outcome_section,
    build_timeline_section,
    build_curves_section,
    build_sweep_section,
    build_gpus_section,
    build_ranks_section,
    build_provenance_section,
)
