"""How many GPUs a run asks for, whichever option of Slurm's does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.cluster.site import parse_gres
from hpckit.model.launch import Resources
from hpckit.model.plan import ResourceSpec


def requested_gpus_per_node(resources: Resources | ResourceSpec) -> int | None:
    """Return the GPUs of each node; None (not 0) if no option is about GPUs.

    A part of a GPU counts as one. `gpus=4` on three nodes are two: Slurm deals them unequally.
    """
    nodes = max(resources.nodes, 1)  # an edited frozen configuration may say 0
    found = max(_count_gpus_per_node(resources), -(-_parse_total_gpus(resources) // nodes))
    return found or int(requests_part_of_gpu(resources)) or resources.gpus_per_node


def requests_part_of_gpu(resources: Resources | ResourceSpec) -> bool:
    """Return whether a run asks for a part of a GPU, which other jobs may use at the same time."""
    return not {"shard", "mps"}.isdisjoint(parse_gres(_join_gres_options(resources)))


def count_allocated_gpus(resources: ResourceSpec) -> int:
    """Return how many whole GPUs one run has, on all its nodes and spare ones."""
    return max(_count_gpus_per_node(resources) * resources.allocated_nodes, _parse_total_gpus(resources))


def node_gpus_from_task_options(resources: Resources | ResourceSpec) -> int:
    """Return the GPUs of all ranks of a node, if each rank is stated to have some; else 0."""
    stated = _additional_sbatch_options(resources)
    each_task = max(
        _parse_device_count(stated.get("gpus_per_task", "")),
        parse_gres(stated.get("tres_per_task", "")).get("gpu", 0),
    )
    return each_task * resources.tasks_per_node


def rank_cpus_from_cpus_per_gpu(resources: Resources | ResourceSpec) -> int:
    """Return the CPUs of a rank by the option `cpus_per_gpu`; 0 without it, or without GPUs."""
    each = _additional_sbatch_options(resources).get("cpus_per_gpu", "")
    gpus = requested_gpus_per_node(resources) or 0
    return int(each) * gpus // resources.tasks_per_node if each.isdecimal() else 0


def count_cpus_per_rank(resources: Resources) -> int:
    """Return the CPUs of a rank: `cpus_per_task`, or those of its GPUs if that is not stated."""
    return (
        resources.cpus_per_task
        if resources.cpus_per_task > 1
        else rank_cpus_from_cpus_per_gpu(resources) or 1
    )


def _count_gpus_per_node(resources: Resources | ResourceSpec) -> int:
    stated = _additional_sbatch_options(resources)
    return max(
        resources.gpus_per_node or 0,
        parse_gres(_join_gres_options(resources)).get("gpu", 0),
        *(_parse_device_count(stated.get(name, "")) for name in ("gpus_per_node", "gpus_per_socket")),
        node_gpus_from_task_options(resources),
    )


def _join_gres_options(resources: Resources | ResourceSpec) -> str:
    stated = _additional_sbatch_options(resources)
    found = (resources.gres, stated.get("gres"), stated.get("tres_per_node"))
    return ",".join(text for text in found if text)


def _parse_total_gpus(resources: Resources | ResourceSpec) -> int:
    return _parse_device_count(_additional_sbatch_options(resources).get("gpus", ""))


def _additional_sbatch_options(resources: Resources | ResourceSpec) -> Mapping[str, str]:
    more = resources.additional_parameters
    pairs = more.items() if isinstance(more, Mapping) else more
    return {name.replace("-", "_"): str(value) for name, value in pairs if value}


def _parse_device_count(text: str) -> int:
    # The forms `4`, `a100:4` and `a100:2,v100:2`.
    counts = (word.rpartition(":")[2] for word in text.split(","))
    return sum(int(count) for count in counts if count.isdecimal())
