"""What the links of a node promise, from facts alone: bytes per second, with the arithmetic. Pure.

Sources: NCCL's topo.h for what it counts on per NVLink (https://github.com/NVIDIA/nccl, by compute
capability); its ring of 8 A100 reaches 12 x 20 GB/s, of 8 H100 18 x 20.6 within 1 %. PCIe carries
0.985 GB/s per lane in generation 3 and doubles with each (128b/130b). Networks are those of sysfs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpckit.features.interconnect.model import CommOperation, InterconnectMeasurement, LinkPath, PathPromise
from hpckit.model.counted import format_count
from hpckit.model.environment.facts import GpuFacts, NodeLinks
from hpckit.values import replace

_GIGA = 1e9
_BITS = 8
_NVLINK = ((10.0, 40.1), (9.0, 20.6), (8.7, 20.0), (8.6, 12.0), (7.0, 20.0), (6.0, 18.0))
"""From this compute capability on, GB/s of one link in one direction that NCCL counts on."""
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one PCIe lane in one direction, by generation."""
_OF_PCIE = 0.76
"""NCCL counts on 12 of the 15.75 GB/s of sixteen lanes of generation 3."""
_SLACK = 1.1
"""A port and a slot of the same generation fit each other, although their figures differ a bit."""
_SHARING = (CommOperation.point_to_point, CommOperation.all_to_all)
"""Each rank talks to others by itself; no ring passes data on."""
_MOST_OF_GLOO = 10.0
"""Gbit/s: gloo copies through CPUs and TCP, and promises nothing of faster networks. Our judgement:
ten gigabits are what one core sends."""


def find_link_path(operation: CommOperation, nodes: int) -> LinkPath:
    """Return between what an operation's slowest bytes go, over so many nodes."""
    if operation.copies_between_host_and_gpu:
        return LinkPath.host_device
    return LinkPath.between_nodes if nodes > 1 else LinkPath.within_node


def compute_nominal_bus_bandwidth(operation: CommOperation, measured: InterconnectMeasurement) -> PathPromise:
    """Return what the links promise an operation's bus bandwidth; of several nodes the least.

    A ring has all networks of a node, and is bounded by what leads through the node; a message
    between two ranks of different nodes has its rank's share of them.
    """
    path = find_link_path(operation, measured.node_count)
    if not measured.links:
        return _build_unknown_bandwidth(path, "the nodes reported nothing about their links")
    promises = [_compute_nominal_node_bandwidth(path, link, operation, measured) for link in measured.links]
    unknown = next((promise for promise in promises if promise.bytes_per_s is None), None)
    return unknown or min(promises, key=lambda promise: promise.bytes_per_s or 0.0)


def _compute_nominal_node_bandwidth(
    path: LinkPath, links: NodeLinks, operation: CommOperation, measured: InterconnectMeasurement
) -> PathPromise:
    if path is LinkPath.host_device:
        return _compute_nominal_pcie_bandwidth(path, links.gpus or ())
    if path is LinkPath.within_node:
        if operation is CommOperation.point_to_point and any(gpu.nvlinks for gpu in links.gpus or ()):
            return _build_unknown_bandwidth(path, "the NVLinks of a GPU may lead to several others")
        return _nominal_bandwidth_within_node(links, measured)
    network = _nominal_network_bandwidth_of_node(links, measured)
    if network.bytes_per_s is None or operation in _SHARING:
        return _divide_network_among_ranks(network, operation, measured)
    inside = _nominal_bandwidth_within_node(links, measured) if measured.ranks_per_node > 1 else network
    if inside.bytes_per_s is None or inside.bytes_per_s >= network.bytes_per_s:
        return network
    return replace(inside, path=path, words=f"{inside.words}, less than the networks")


def _nominal_bandwidth_within_node(links: NodeLinks, measured: InterconnectMeasurement) -> PathPromise:
    path = LinkPath.within_node
    if measured.device == "cpu":
        return _build_unknown_bandwidth(path, "ranks on CPUs of one node talk through its memory")
    gpus = links.gpus or ()
    if not gpus:
        return _build_unknown_bandwidth(path, f"{links.host} does not say which GPUs it has")
    if not all(gpu.nvlinks for gpu in gpus):
        return _compute_nominal_pcie_bandwidth(path, gpus)
    # A link that is down counts: it is promised, and its lack is what a low share tells.
    count, gpu = min(
        (((gpu.nvlinks or 0) + (gpu.nvlinks_down or 0), gpu) for gpu in gpus), key=lambda one: one[0]
    )
    rate = next((gbytes for least, gbytes in _NVLINK if (gpu.capability_number or 0) >= least), None)
    if rate is None:
        return _build_unknown_bandwidth(path, f"the NVLinks of {gpu.name} are not in our table")
    words = f"{format_count(count, 'NVLink')} x {rate:g} GB/s"
    return PathPromise(path=path, bytes_per_s=count * rate * _GIGA, words=words)


def _compute_nominal_pcie_bandwidth(path: LinkPath, gpus: Sequence[GpuFacts]) -> PathPromise:
    """Return the promise of the slots: a narrow one is promised what the GPU could use."""
    found: list[tuple[float, str]] = []
    for links in gpus:
        generation = links.pcie_generation_max or links.pcie_generation
        width = links.pcie_width_max or links.pcie_width
        if not width or generation not in _LANE:
            return _build_unknown_bandwidth(path, f"the PCIe slot of {links.name} is not known")
        lane = _LANE[generation]
        words = f"{width} lanes of PCIe {generation} x {lane:g} GB/s x {_OF_PCIE:g}"
        found.append((width * lane * _OF_PCIE * _GIGA, words))
    if not found:
        return _build_unknown_bandwidth(path, "no GPU says how it is connected")
    rate, words = min(found)
    return PathPromise(path=path, bytes_per_s=rate, words=words)


def _nominal_network_bandwidth_of_node(links: NodeLinks, measured: InterconnectMeasurement) -> PathPromise:
    """Return what all networks of a node carry together, as far as its GPUs reach them."""
    path = LinkPath.between_nodes
    if measured.device != "cpu" and links.ports:
        rates = [port.gbit_per_s for port in links.ports]
        what = "fabric port"
    else:
        rates = [
            max(_drop_unknown_rates(interface.gbit_per_s for interface in links.interfaces), default=None)
        ]
        what = "network card"
    known = _drop_unknown_rates(rates)
    if len(known) < len(rates) or not known:
        return _build_unknown_bandwidth(path, f"{links.host} does not say how fast its networks are")
    total = sum(known)
    if measured.device == "cpu" and total > _MOST_OF_GLOO:
        return _build_unknown_bandwidth(path, f"gloo on CPUs does not fill a network of {total:g} Gbit/s")
    words = f"{format_count(len(known), what)}, {total:g} Gbit/s / {_BITS}"
    network = PathPromise(path=path, bytes_per_s=total / _BITS * _GIGA, words=words)
    slots = _compute_nominal_pcie_bandwidth(path, links.gpus or ())
    count = min(measured.ranks_per_node, len(links.gpus or ()))
    if slots.bytes_per_s is None or count * slots.bytes_per_s * _SLACK >= total / _BITS * _GIGA:
        return network
    # The networks are further away than the slots of these GPUs let through.
    words = f"{format_count(count, 'GPU')} x {slots.words}"
    return PathPromise(path=path, bytes_per_s=count * slots.bytes_per_s, words=words)


def _divide_network_among_ranks(
    network: PathPromise, operation: CommOperation, measured: InterconnectMeasurement
) -> PathPromise:
    """Return a rank's share of the networks of its node.

    In an all_to_all a rank sends only n - m of its n - 1 parts over them, with m ranks on a node;
    bus bandwidth counts all n - 1.
    """
    ranks = measured.ranks_per_node
    if network.bytes_per_s is None or ranks == 1:
        return network
    rate, words = network.bytes_per_s / ranks, f"{network.words} / {ranks} ranks"
    if operation is CommOperation.all_to_all:
        parts, far = measured.ranks - 1, measured.ranks - ranks
        rate, words = rate * parts / far, f"{words} x {parts}/{far}"
    return PathPromise(path=network.path, bytes_per_s=rate, words=words)


def _drop_unknown_rates(rates: Iterable[float | None]) -> list[float]:
    return [rate for rate in rates if rate]


def _build_unknown_bandwidth(path: LinkPath, why: str) -> PathPromise:
    return PathPromise(path=path, bytes_per_s=None, words=f"no promise known: {why}")
