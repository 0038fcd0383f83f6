"""What a measurement says of the interconnect: shares of promises, findings, likely causes. Pure.

Nothing is concluded from too little: fewer than four sizes, or none in which bandwidth counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hpckit.features.interconnect.fit import best_bus_bandwidth, fit_latency, is_enough, rate_text
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
from hpckit.features.interconnect.promise import promise_of
from hpckit.model.counted import whole_percent
from hpckit.model.finding import Finding, error, warning

LOW = 0.7
"""Below this share of the promise an operation is told. Our judgement: Azure's node checks want
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
        *_wrong(measured),
        *_slow_parts(measured),
        *_below_promise(measured, operations),
        *_slower_than_earlier(operations),
        *_narrow(measured),
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
    best = best_bus_bandwidth(times.operation, measured.ranks, times.times)
    promise = promise_of(times.operation, measured)
    usual, count = usual_rate(times.operation, shape, earlier)
    return OperationVerdict(
        operation=times.operation,
        fit=fit_latency(
            [time_.size for time_ in times.times], [time_.seconds for time_ in times.times]
        ),
        enough=is_enough(times),
        bus_bytes_per_s=best,
        promise=promise,
        share=best / promise.bytes_per_s if best and promise.bytes_per_s else None,
        earlier=usual,
        earlier_count=count,
    )


def below_promise(measured: InterconnectMeasurement) -> bool | None:
    """Return whether an operation stays below what links promise; None if none is promised."""
    shares = [
        best / promise
        for operation in measured.operations
        if is_enough(operation) and not operation.operation.needs_device
        if (promise := promise_of(operation.operation, measured).bytes_per_s)
        if (best := best_bus_bandwidth(operation.operation, measured.ranks, operation.times))
    ]
    return any(share < LOW for share in shares) if shares else None


def _wrong(measured: InterconnectMeasurement) -> Iterator[Finding]:
    for operation in measured.operations:
        if operation.wrong_ranks:
            ranks = ", ".join(map(str, operation.wrong_ranks))
            numbers = sorted(
                {rank // max(1, measured.ranks_per_node) for rank in operation.wrong_ranks}
            )
            hosts = ", ".join(measured.hosts[node] for node in numbers if node < measured.nodes)
            yield error(
                operation.operation,
                ranks,
                f"{operation.operation} gave a wrong result on rank {ranks} ({hosts}): data is "
                "corrupted silently, by a GPU, a link or memory",
                f"leave these nodes out (resources.exclude={hosts.replace(', ', ',')}), and tell "
                "the site; nothing that was trained on them can be trusted",
            )


def _slow_parts(measured: InterconnectMeasurement) -> Iterator[Finding]:
    found = measured.found
    make = error if found.factor >= SURELY_SLOW else warning
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


def _below_promise(
    measured: InterconnectMeasurement, operations: Sequence[OperationVerdict]
) -> Iterator[Finding]:
    for operation in operations:
        if operation.share is None or operation.share >= LOW or not operation.enough:
            continue
        make = error if operation.share < VERY_LOW else warning
        cause, remedy = _likely_cause(operation.promise.path, measured)
        yield make(
            operation.operation,
            whole_percent(operation.share),
            f"{operation.operation} reaches {rate_text(operation.bus_bytes_per_s)}, "
            f"{whole_percent(operation.share)} of {rate_text(operation.promise.bytes_per_s)} "
            f"({operation.promise.words}); likely: {cause}",
            remedy,
        )


def _slower_than_earlier(operations: Sequence[OperationVerdict]) -> Iterator[Finding]:
    for operation in operations:
        if not operation.earlier or not operation.bus_bytes_per_s or not operation.enough:
            continue
        share = operation.bus_bytes_per_s / operation.earlier
        if share < SLOWER:
            yield warning(
                operation.operation,
                whole_percent(share),
                f"{operation.operation} is {whole_percent(1 - share)} slower than the median of "
                f"{operation.earlier_count} earlier measurements, {rate_text(operation.earlier)}",
                "measure again, on other nodes too: other jobs on the network, another driver or "
                "NCCL, or a part that fails",
            )


def _narrow(measured: InterconnectMeasurement) -> Iterator[Finding]:
    for node in measured.links:
        for number, gpu in enumerate(node.gpus or ()):
            now, most = gpu.pcie_width, gpu.pcie_width_max
            if now and most and now < most:
                yield warning(
                    "PCIe",
                    now,
                    f"GPU {number} of {node.host} uses {now} of {most} PCIe lanes",
                    "the site can reseat the card or its riser",
                )
            if gpu.nvlinks and gpu.nvlinks_down:
                yield warning(
                    "NVLink",
                    gpu.nvlinks,
                    f"{gpu.nvlinks_down} of {gpu.nvlinks + gpu.nvlinks_down} NVLinks of GPU "
                    f"{number} of {node.host} are down",
                    f"leave the node out (resources.exclude={node.host}), and tell the site",
                )


def _likely_cause(path: LinkPath, measured: InterconnectMeasurement) -> tuple[str, str]:
    """Return the likely cause, and what to do about it."""
    found, gpus = measured.found, [gpu for node in measured.links for gpu in node.gpus or ()]
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
        if any(
            (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0) and gpu.pcie_width for gpu in gpus
        ):
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


def shape_of(measured: InterconnectMeasurement, cluster: str) -> MeasuredShape:
    """Return the shape of a measurement on the cluster of this name."""
    names = sorted({gpu.name for node in measured.links for gpu in node.gpus or ()})
    return MeasuredShape(
        cluster=cluster,
        nodes=measured.nodes,
        ranks=measured.ranks,
        device=measured.device,
        backend=measured.backend,
        gpu=", ".join(names),
    )


def kept_of(measured: InterconnectMeasurement, cluster: str) -> KeptMeasurement:
    """Return what later measurements are compared with: what was measured enough."""
    reached = {
        operation.operation.value: best_bus_bandwidth(
            operation.operation, measured.ranks, operation.times
        )
        for operation in measured.operations
        if is_enough(operation) and not operation.wrong_ranks
    }
    return KeptMeasurement(
        at=measured.at.isoformat(),
        shape=shape_of(measured, cluster),
        bus_bytes_per_s={name: rate for name, rate in reached.items() if rate is not None},
    )


def usual_rate(
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
