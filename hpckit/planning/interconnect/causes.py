"""Why a path may carry less than it promises: the likeliest cause that facts support. Pure."""

from __future__ import annotations

from hpckit.model.interconnect.measurement import InterconnectMeasurement
from hpckit.model.interconnect.verdict import LinkPath


def likely_cause(path: LinkPath, measured: InterconnectMeasurement) -> tuple[str, str]:
    """Return the likely cause, and what to do about it."""
    found = measured.search.found if measured.search else None
    if path is LinkPath.between_nodes:
        if _sockets_for_fabric(measured):
            return (
                "NCCL uses TCP sockets, although InfiniBand is up",
                "see NCCL_IB_DISABLE, NCCL_IB_HCA and the memlock limit: `hpckit doctor --env`",
            )
        if found is not None and (found.nodes or found.links):
            return "the slow node or link that is named", "leave it out, then measure again"
    if path is not LinkPath.between_nodes:
        if _narrow_slot(measured):
            return "a GPU with fewer PCIe lanes than it has", "tell the site which GPU it is"
        if _links_down(measured):
            return "NVLinks that are down", "tell the site which GPU it is"
    if _several_memories(measured):
        return (
            "ranks run on another NUMA node than their GPU or network card",
            "let Slurm bind them: resources.additional_parameters={gpu-bind: closest}",
        )
    return (
        "other jobs on the same links, or settings of the site",
        "measure again at another time, and on other nodes",
    )


def _sockets_for_fabric(measured: InterconnectMeasurement) -> bool:
    fabric = any(node.ports for node in measured.links)
    return fabric and (measured.network or "").lower() == "socket"


def _narrow_slot(measured: InterconnectMeasurement) -> bool:
    return any(
        gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max
        for node in measured.links
        for gpu in node.gpus or ()
    )


def _links_down(measured: InterconnectMeasurement) -> bool:
    return any(gpu.nvlinks_down for node in measured.links for gpu in node.gpus or ())


def _several_memories(measured: InterconnectMeasurement) -> bool:
    return any((node.numa_nodes or 1) > 1 for node in measured.links)
