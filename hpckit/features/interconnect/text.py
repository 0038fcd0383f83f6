"""What `hpckit bench comm` shows: a table with remarks and findings, JSON, or a figure. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.features.interconnect.fit import GIGA, compute_bus_bandwidth, format_bytes_per_second
from hpckit.features.interconnect.model import (
    InterconnectMeasurement,
    InterconnectVerdict,
    LatencyFit,
    MeasuredShape,
    OperationTimes,
    OperationVerdict,
)
from hpckit.features.reporting.figure import XY, CurveAxis, CurveFigure, FigureLine, FigurePanel
from hpckit.model.counted import format_byte_size, format_count, format_whole_percent
from hpckit.model.plain import attributes_to_json, replace_nan_with_null, to_plain
from hpckit.report.text import Page, TextTable

_MICRO = 1e-6
_HEADER = ("OPERATION", "SIZES", "LATENCY", "BUS BANDWIDTH", "PROMISE", "EARLIER")
_SHOWN_HOSTS = 8
_GPU = (
    "name capability=capability_number nvlinks nvlinks_down pcie_generation pcie_generation_max "
    "pcie_width pcie_width_max numa"
)


def render_interconnect_page(measured: InterconnectMeasurement, verdict: InterconnectVerdict) -> Page:
    """Return the head, a row for each operation, remarks, and the findings."""
    rows = tuple(
        _format_operation_row(measured, operation)
        for operation in verdict.operations
        if operation.bus_bytes_per_s
    )
    page: list[TextTable | str] = [*_format_head(measured), TextTable(header=_HEADER, rows=rows)]
    page += dict.fromkeys(
        f"{operation.promise.path.value}: {operation.promise.words}" for operation in verdict.operations
    )
    page += _explain_not_measured(measured, verdict)
    page += _format_search_result(measured)
    for finding in verdict.findings:
        page.append(f"{finding.severity}: {finding.message}")
        page += [f"  {line}" for line in finding.hint.splitlines()]
    if not verdict.findings:
        page.append("nothing slow or wrong was found")
    return page


def _format_head(measured: InterconnectMeasurement) -> Iterator[str]:
    library = f"NCCL {measured.nccl}" if measured.nccl else measured.backend
    network = f" over {measured.network}" if measured.network else ""
    hosts = ", ".join(measured.hosts[:_SHOWN_HOSTS])
    more = ", ..." if measured.node_count > _SHOWN_HOSTS else ""
    yield (
        f"{format_count(measured.ranks, 'rank')} on {format_count(measured.node_count, 'node')} "
        f"({hosts}{more}), {library}{network}, torch {measured.torch}, {measured.seconds:.0f} s"
    )


def _format_operation_row(measured: InterconnectMeasurement, one: OperationVerdict) -> tuple[str, ...]:
    sizes = [each.size for each in measured.find_times(one.operation)]
    return (
        one.operation.value,
        f"{format_byte_size(min(sizes))} to {format_byte_size(max(sizes))}",
        format_latency(one.fit),
        format_bytes_per_second(one.bus_bytes_per_s),
        f"{format_whole_percent(one.share)} of {format_bytes_per_second(one.promise.bytes_per_s)}"
        if one.share is not None
        else "",
        f"{format_whole_percent((one.bus_bytes_per_s or 0) / one.earlier)} of "
        f"{format_bytes_per_second(one.earlier)}"
        if one.earlier
        else "",
    )


def format_latency(fit: LatencyFit | None) -> str:
    """Return the latency with its interval; a question mark if the line is in doubt.

    Example: `12.3 +- 0.5 us`.
    """
    if fit is None:
        return ""
    if fit.doubt:
        return "?"
    latency, error = fit.alpha_s * 1e6, fit.alpha_error_s * 1e6
    digits = 2 if latency < 10 else 1 if latency < 100 else 0  # noqa: PLR2004  # three in all
    return f"{latency:.{digits}f} +- {error:.{digits}f} us"


def _explain_not_measured(measured: InterconnectMeasurement, verdict: InterconnectVerdict) -> Iterator[str]:
    for operation in measured.operations:
        if operation.missing:
            yield f"{operation.operation.value} was not measured: {operation.missing}"
    rows = [operation for operation in measured.operations if operation.times]
    ended = [operation for operation in measured.operations if operation.ended]
    for why in dict.fromkeys(times.ended for times in ended):
        names = [operation.operation.value for operation in ended if operation.ended == why]
        what = "" if len(names) == len(rows) else f" of {', '.join(names)}"
        yield f"larger sizes{what} were not measured: {why}"
    for each in verdict.operations:
        if each.fit is not None and each.fit.doubt:
            yield f"no latency of {each.operation.value}: {each.fit.doubt}"


def _format_search_result(measured: InterconnectMeasurement) -> Iterator[str]:
    search = measured.search
    if search is None:
        return
    if not search.rounds:
        yield f"no slow node was searched for: {search.why_not}"
        return
    hosts, found = measured.hosts, measured.found_slow_nodes_and_links
    names = [hosts[node] for node in found.nodes]
    names += [f"the link {hosts[link.first]}-{hosts[link.second]}" for link in found.links]
    groups, rounds = format_count(len(search.groups), "group"), format_count(search.rounds, "round")
    yield (
        f"searched {groups} of nodes in {rounds} with messages of {format_byte_size(search.size)}: "
        + (f"{', '.join(names)} slow" if names else "all are equally fast")
    )
    if search.why_not:
        yield search.why_not


def interconnect_to_json(
    measured: InterconnectMeasurement, shape: MeasuredShape, verdict: InterconnectVerdict
) -> dict[str, object]:
    """Return the object; rates are bytes per second, times seconds, sizes bytes."""
    hosts, found = measured.hosts, measured.found_slow_nodes_and_links
    judged = {operation.operation: operation for operation in verdict.operations}
    document: dict[str, object] = {
        "at": to_plain(measured.at),
        "shape": to_plain(shape),
        **attributes_to_json(measured, "hosts", "ranks_per_node", "torch", "nccl", "network", "seconds"),
        "operations": [
            {
                "operation": operation.operation.value,
                "missing": operation.missing or None,
                "ended": operation.ended or None,
                **attributes_to_json(operation, "wrong_ranks", "times"),
                **_verdict_to_json(judged.get(operation.operation)),
            }
            for operation in measured.operations
        ],
        "links": [
            to_plain(node) | {"gpus": node.gpus and [attributes_to_json(gpu, _GPU) for gpu in node.gpus]}
            for node in measured.links
        ],
        **attributes_to_json(measured, "search"),
        "slow_nodes": [hosts[node] for node in found.nodes],
        "slow_links": [[hosts[link.first], hosts[link.second]] for link in found.links],
        "findings": [
            {
                "level": finding.severity.value,
                "subject": finding.key,
                **attributes_to_json(finding, "value", "message", "hint"),
            }
            for finding in verdict.findings
        ],
        "healthy": not any(finding.is_error for finding in verdict.findings),
    }
    plain: dict[str, object] = replace_nan_with_null(document)
    return plain


def _verdict_to_json(one: OperationVerdict | None) -> dict[str, object]:
    return {
        **attributes_to_json(one, "bus_bytes_per_s", "fit"),
        "promise_bytes_per_s": one and one.promise.bytes_per_s,
        "promise": one and one.promise.words,
        **attributes_to_json(one, "share"),
        "earlier_bytes_per_s": one and one.earlier,
        "earlier_count": one.earlier_count if one else 0,
    }


def build_bandwidth_latency_figure(measured: InterconnectMeasurement) -> CurveFigure:
    """Return two panels over the size in bytes: GB/s of the bus, and microseconds."""
    shown = [operation for operation in measured.operations if operation.times]

    def lines(panel: str) -> tuple[FigureLine, ...]:
        return tuple(
            FigureLine(name=one.operation.value, colour=place, live=_build_curve_points(one, panel, measured))
            for place, one in enumerate(shown)
        )

    names = ("bus bandwidth (GB/s)", "time (us)")
    return CurveFigure(
        panels=tuple(FigurePanel(metric=name, lines=lines(name)) for name in names),
        axis=CurveAxis.step,
        named_x="size (bytes)",
    )


def _build_curve_points(one: OperationTimes, panel: str, measured: InterconnectMeasurement) -> XY:
    sizes = tuple(float(each.size) for each in one.times)
    if panel.startswith("time"):
        return sizes, tuple(each.seconds / _MICRO for each in one.times)
    return sizes, tuple(
        compute_bus_bandwidth(one.operation, measured.ranks, each.size, each.seconds) / GIGA
        for each in one.times
    )
