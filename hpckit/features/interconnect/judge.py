"""What a measurement says of the interconnect: shares of promises, findings, likely causes. Pure.

Nothing is concluded from too little: fewer than four sizes, or none in which bandwidth counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpckit.features.interconnect.fit import (
    find_best_bus_bandwidth,
    fit_latency_and_bandwidth,
    format_bytes_per_second,
    has_enough_measurements,
)
from hpckit.features.interconnect.model import (
    CommOperation,
    InterconnectMeasurement,
    InterconnectVerdict,
    KeptMeasurement,
    LinkPath,
    MeasuredShape,
    OperationTimes,
    OperationVerdict,
)
from hpckit.features.interconnect.promise import compute_nominal_bus_bandwidth
from hpckit.model.counted import format_whole_percent
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding

LOW = 0.7
"""Below this share of the promise an operation is reported. Our judgement: Azure's node checks want
95 % of it from eight A100 (228 of 240 GB/s), over networks 70 to 90 % are usual."""
VERY_LOW = 0.35
"""Below this share it is an error: half of what is still tolerated, as one of two links gives."""
SURELY_SLOW = 3.0
"""A node or link that takes this many times what others need is an error, below it a warning. Our
judgement: other jobs on a network or its CPUs make a path twice as slow, hardly three times."""


def judge_interconnect(
    measured: InterconnectMeasurement, shape: MeasuredShape, earlier: Sequence[KeptMeasurement]
) -> InterconnectVerdict:
    """Return the verdict: of each operation, and the findings, errors first."""
    operations = tuple(
        judge_operation(operation, measured, shape, earlier)
        for operation in measured.operations
        if not operation.missing
    )
    found = [
        *_report_wrong_results(measured),
        *_report_slow_nodes_and_links(measured),
        *_report_below_nominal_bandwidth(measured, operations),
        *_report_slower_than_earlier(operations),
        *_report_degraded_gpu_links(measured),
    ]
    findings = tuple(sorted(found, key=lambda one: not one.is_error))
    return InterconnectVerdict(operations=operations, findings=findings)


def judge_operation(
    times: OperationTimes,
    measured: InterconnectMeasurement,
    shape: MeasuredShape,
    earlier: Sequence[KeptMeasurement],
) -> OperationVerdict:
    """Return the line, the best bus bandwidth and the promise of an operation."""
    best = find_best_bus_bandwidth(times.operation, measured.ranks, times.times)
    promise = compute_nominal_bus_bandwidth(times.operation, measured)
    usual, count = compute_median_earlier_bandwidth(times.operation, shape, earlier)
    return OperationVerdict(
        operation=times.operation,
        fit=fit_latency_and_bandwidth(
            [time_.size for time_ in times.times], [time_.seconds for time_ in times.times]
        ),
        enough=has_enough_measurements(times),
        bus_bytes_per_s=best,
        promise=promise,
        share=best / promise.bytes_per_s if best and promise.bytes_per_s else None,
        earlier=usual,
        earlier_count=count,
    )


def is_below_nominal_bandwidth(measured: InterconnectMeasurement) -> bool | None:
    """Return whether an operation stays below what links promise; None if none is promised."""
    shares = [
        best / promise
        for operation in measured.operations
        if has_enough_measurements(operation) and not operation.operation.copies_between_host_and_gpu
        if (promise := compute_nominal_bus_bandwidth(operation.operation, measured).bytes_per_s)
        if (best := find_best_bus_bandwidth(operation.operation, measured.ranks, operation.times))
    ]
    return any(share < LOW for share in shares) if shares else None


def _report_wrong_results(measured: InterconnectMeasurement) -> Iterator[Finding]:
    for operation in measured.operations:
        if operation.wrong_ranks:
            ranks = ", ".join(map(str, operation.wrong_ranks))
            numbers = sorted({rank // max(1, measured.ranks_per_node) for rank in operation.wrong_ranks})
            hosts = ", ".join(measured.hosts[node] for node in numbers if node < measured.node_count)
            yield build_error_finding(
                operation.operation,
                ranks,
                f"{operation.operation} gave a wrong result on rank {ranks} ({hosts}): data is "
                "corrupted silently, by a GPU, a link or memory",
                f"leave these nodes out (resources.exclude={hosts.replace(', ', ',')}), and tell "
                "the site; nothing that was trained on them can be trusted",
            )


def _report_slow_nodes_and_links(measured: InterconnectMeasurement) -> Iterator[Finding]:
    found = measured.found_slow_nodes_and_links
    make = build_error_finding if found.factor >= SURELY_SLOW else build_warning_finding
    for node in found.nodes:
        host = measured.hosts[node]
        yield make(
            "slow node",
            host,
            f"{host} is slow with every other node: an exchange takes {found.factor:.1f} times "
            "what other pairs need",
            f"leave it out (resources.exclude={host}), and tell the site: its network card, cable "
            "or switch port, or another job that uses them",
        )
    for link in found.links:
        one, other = measured.hosts[link.first], measured.hosts[link.second]
        yield make(
            "slow link",
            f"{one}-{other}",
            f"the link between {one} and {other} is slow: {found.factor:.1f} times what other "
            "pairs need, while both are fast with others",
            f"leave one of them out (resources.exclude={other}), and tell the site: a path between "
            "their switches",
        )


def _report_below_nominal_bandwidth(
    measured: InterconnectMeasurement, operations: Sequence[OperationVerdict]
) -> Iterator[Finding]:
    for operation in operations:
        if operation.share is None or operation.share >= LOW or not operation.enough:
            continue
        make = build_error_finding if operation.share < VERY_LOW else build_warning_finding
        cause, remedy = _explain_likely_cause(operation.promise.path, measured)
        yield make(
            operation.operation,
            format_whole_percent(operation.share),
            f"{operation.operation} reaches {format_bytes_per_second(operation.bus_bytes_per_s)}, "
            f"{format_whole_percent(operation.share)} of "
            f"{format_bytes_per_second(operation.promise.bytes_per_s)} "
            f"({operation.promise.words}); likely: {cause}",
            remedy,
        )


def _report_slower_than_earlier(operations: Sequence[OperationVerdict]) -> Iterator[Finding]:
    for operation in operations:
        if not operation.earlier or not operation.bus_bytes_per_s or not operation.enough:
            continue
        share = operation.bus_bytes_per_s / operation.earlier
        if share < SLOWER:
            yield build_warning_finding(
                operation.operation,
                format_whole_percent(share),
                f"{operation.operation} is {format_whole_percent(1 - share)} slower than the "
                f"median of {operation.earlier_count} earlier measurements, "
                f"{format_bytes_per_second(operation.earlier)}",
                "measure again, on other nodes too: other jobs on the network, another driver or "
                "NCCL, or a part that fails",
            )


def _report_degraded_gpu_links(measured: InterconnectMeasurement) -> Iterator[Finding]:
    for node in measured.links:
        for number, gpu in enumerate(node.gpus or ()):
            now, most = gpu.pcie_width, gpu.pcie_width_max
            if now and most and now < most:
                yield build_warning_finding(
                    "PCIe",
                    now,
                    f"GPU {number} of {node.host} uses {now} of {most} PCIe lanes",
                    "the site can reseat the card or its riser",
                )
            if gpu.nvlinks and gpu.nvlinks_down:
                yield build_warning_finding(
                    "NVLink",
                    gpu.nvlinks,
                    f"{gpu.nvlinks_down} of {gpu.nvlinks + gpu.nvlinks_down} NVLinks of GPU "
                    f"{number} of {node.host} are down",
                    f"leave the node out (resources.exclude={node.host}), and tell the site",
                )


def _explain_likely_cause(path: LinkPath, measured: InterconnectMeasurement) -> tuple[str, str]:
    found, gpus = (
        measured.found_slow_nodes_and_links,
        [gpu for node in measured.links for gpu in node.gpus or ()],
    )
    if path is LinkPath.between_nodes:
        fabric = any(node.ports for node in measured.links)
        if fabric and (measured.network or "").lower() == "socket":
            return (
                "NCCL uses TCP sockets, although InfiniBand is up",
                "see NCCL_IB_DISABLE, NCCL_IB_HCA and the memlock limit: `hpckit doctor --env`",
            )
        if found.nodes or found.links:
            return "the slow node or link that is named", "leave it out, then measure again"
    else:
        if any((gpu.pcie_width or 0) < (gpu.pcie_width_max or 0) and gpu.pcie_width for gpu in gpus):
            return "a GPU with fewer PCIe lanes than it has", "tell the site which GPU it is"
        if any(gpu.nvlinks_down for gpu in gpus):
            return "NVLinks that are down", "tell the site which GPU it is"
    if any((node.numa_nodes or 1) > 1 for node in measured.links):
        return (
            "ranks run on another NUMA node than their GPU or network card",
            "let Slurm bind them: resources.additional_parameters={gpu-bind: closest}",
        )
    return (
        "other jobs on the same links, or settings of the site",
        "measure again at another time, and on other nodes",
    )


FEWEST_EARLIER = 3
"""With fewer, one disturbed measurement is the median, or half of it."""
SLOWER = 0.8
"""A measurement that reaches less of the median than this is told. Our judgement: jobs that share
a network change it by a tenth from day to day."""


def describe_measured_hardware(measured: InterconnectMeasurement, cluster: str) -> MeasuredShape:
    """Return the shape of a measurement on the cluster of this name."""
    names = sorted({gpu.name for node in measured.links for gpu in node.gpus or ()})
    return MeasuredShape(
        cluster=cluster,
        nodes=measured.node_count,
        ranks=measured.ranks,
        device=measured.device,
        backend=measured.backend,
        gpu=", ".join(names),
    )


def summarize_for_later_comparison(measured: InterconnectMeasurement, cluster: str) -> KeptMeasurement:
    """Return what later measurements are compared with: what was measured enough."""
    reached = {
        operation.operation.value: find_best_bus_bandwidth(
            operation.operation, measured.ranks, operation.times
        )
        for operation in measured.operations
        if has_enough_measurements(operation) and not operation.wrong_ranks
    }
    return KeptMeasurement(
        at=measured.at.isoformat(),
        shape=describe_measured_hardware(measured, cluster),
        bus_bytes_per_s={name: rate for name, rate in reached.items() if rate is not None},
    )


def compute_median_earlier_bandwidth(
    operation: CommOperation, shape: MeasuredShape, earlier: Sequence[KeptMeasurement]
) -> tuple[float | None, int]:
    """Return the median bytes per second of earlier measurements of this shape, and their number.

    None if there are fewer than three: nothing may be concluded from them.
    """
    rates = [
        group.bus_bytes_per_s[operation]
        for group in earlier
        if group.shape == shape and group.bus_bytes_per_s.get(operation, 0.0) > 0
    ]
    return (median(rates) if len(rates) >= FEWEST_EARLIER else None), len(rates)
