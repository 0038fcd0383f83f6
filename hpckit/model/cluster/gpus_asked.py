"""How many GPUs a run asks for, whichever option of Slurm's does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.cluster.site import read_gres
from hpckit.model.launch import Resources
from hpckit.model.plan import ResourceSpec


def gpus_asked(resources: Resources | ResourceSpec) -> int | None:
    """Return the GPUs of each node; None if nothing is said of GPUs, which is not 0.

    A part of a GPU counts as one. `gpus=4` on three nodes are two: Slurm deals them unequally.
    """
    nodes = max(resources.nodes, 1)  # an edited frozen configuration may say 0
    found = max(_of_node(resources), -(-_in_all(resources) // nodes))
    return found or int(asks_for_part(resources)) or resources.gpus_per_node


def asks_for_part(resources: Resources | ResourceSpec) -> bool:
    """Return whether a run asks for a part of a GPU, which other jobs may use at the same time."""
    return not {"shard", "mps"}.isdisjoint(read_gres(_gres(resources)))


def gpus_of(resources: ResourceSpec) -> int:
    """Return how many whole GPUs one run has, on all its nodes and spare ones."""
    return max(_of_node(resources) * resources.allocated_nodes, _in_all(resources))


def gpus_by_task(resources: Resources | ResourceSpec) -> int:
    """Return the GPUs of all ranks of a node, if each rank is stated to have some; else 0."""
    stated = _stated(resources)
    each_task = max(
        _devices(stated.get("gpus_per_task", "")),
        read_gres(stated.get("tres_per_task", "")).get("gpu", 0),
    )
    return each_task * resources.tasks_per_node


def cpus_by_gpu(resources: Resources | ResourceSpec) -> int:
    """Return the CPUs of a rank by the option `cpus_per_gpu`; 0 without it, or without GPUs."""
    each = _stated(resources).get("cpus_per_gpu", "")
    gpus = gpus_asked(resources) or 0
    return int(each) * gpus // resources.tasks_per_node if each.isdecimal() else 0


def cpus_of_task(resources: Resources) -> int:
    """Return the CPUs of a rank: `cpus_per_task`, or those of its GPUs if that is not stated."""
    return resources.cpus_per_task if resources.cpus_per_task > 1 else cpus_by_gpu(resources) or 1


def _of_node(resources: Resources | ResourceSpec) -> int:
    stated = _stated(resources)
    return max(
        resources.gpus_per_node or 0,
        read_gres(_gres(resources)).get("gpu", 0),
        *(_devices(stated.get(name, "")) for name in ("gpus_per_node", "gpus_per_socket")),
        gpus_by_task(resources),
    )


def _gres(resources: Resources | ResourceSpec) -> str:
    """Return the generic resources of each node, by any of the options that ask for some."""
    stated = _stated(resources)
    found = (resources.gres, stated.get("gres"), stated.get("tres_per_node"))
    return ",".join(text for text in found if text)


def _in_all(resources: Resources | ResourceSpec) -> int:
    return _devices(_stated(resources).get("gpus", ""))


def _stated(resources: Resources | ResourceSpec) -> Mapping[str, str]:
    more = resources.additional_parameters
    pairs = more.items() if isinstance(more, Mapping) else more
    return {name.replace("-", "_"): str(value) for name, value in pairs if value}


def _devices(text: str) -> int:
    # The forms `4`, `a100:4` and `a100:2,v100:2`.
    counts = (word.rpartition(":")[2] for word in text.split(","))
    return sum(int(count) for count in counts if count.isdecimal())
