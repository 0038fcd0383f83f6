"""Which of a cluster's GPU types a user means: `a100` is `nvidia_a100-sxm4-80gb` there. Pure.

Slurm compares types letter by letter, and sites name them as their drivers do, with sizes and slices.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpckit.errors import ConfigError
from hpckit.model.cluster.site import NodeGroup
from hpckit.model.finding import Finding, build_error_finding
from hpckit.model.launch import Cluster, ClusterKind, Resources
from hpckit.model.plan import ResourceSpec
from hpckit.patterns import lazy_pattern

UNTYPED = "gpu"
"""The name of GPUs without a type."""

_SLICE = lazy_pattern(r"\d+g\.\d+gb", re.IGNORECASE)
"""Part of the name of a part of a GPU, as NVIDIA's MIG makes them."""
_KEY = "resources.gpu_type"


def match_gpu_types(wanted: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the types that a user may mean; a slice of a GPU only if a slice is meant."""
    if wanted in known:
        return (wanted,)
    part = rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?![a-z0-9])"
    sliced = _SLICE.search(wanted) is not None
    alike = (name for name in known if re.search(part, name.lower()))
    return tuple(sorted(name for name in alike if (_SLICE.search(name) is not None) is sliced))


def count_gpus_by_type(gres: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs of a node by type, from its generic resources; the rest as `gpu`."""
    found = {name.removeprefix("gpu:"): count for name, count in gres.items() if name.startswith("gpu:")}
    rest = gres.get("gpu", 0) - sum(found.values())
    return found | ({UNTYPED: rest} if rest > 0 else {})


def find_gpu_type_for_slurm(resources: Resources, cluster: Cluster) -> str | None:
    """Return the type as this cluster names it; the user's word if `cluster.gpu_types` is empty.

    Raises ConfigError if there is no such type, or several, in the chosen partitions.
    """
    wanted = resources.gpu_type
    if wanted is None or cluster.kind is ClusterKind.local:
        return None
    if not resources.gpus_per_node:
        raise ConfigError(
            f"{_KEY} is {wanted}, but the run asks for no GPU with resources.gpus_per_node",
            hint=f"say how many: resources=one_gpu, or resources.gpus_per_node=1; or leave {_KEY} out",
        )
    chosen = (resources.partition or cluster.partition or "").split(",")
    stated = {name: types for name, types in cluster.gpu_types.items() if chosen == [""] or name in chosen}
    types = {name for types in stated.values() for name in types} - {UNTYPED}
    if not cluster.gpu_types or wanted in types:
        return wanted
    found = match_gpu_types(wanted, types)
    if len(found) == 1:
        return found[0]
    where = "this cluster" if chosen == [""] else f"partition {','.join(chosen)}"
    raise ConfigError(
        f"{_KEY} is {wanted}, and {where} has {_format_types(types, found)} (cluster.gpu_types)",
        hint=_suggest_gpu_type(found) or _suggest_partition(wanted, cluster),
    )


def find_missing_gpu_type(name: str, groups: Sequence[NodeGroup], resources: ResourceSpec) -> Finding | None:
    """Return an error if no node of a partition has GPUs of the requested type."""
    wanted = resources.gpu_type
    if not wanted or any(f"gpu:{wanted}" in group.gres for group in groups):
        return None
    types = {kind for group in groups for kind in count_gpus_by_type(group.gres)} - {UNTYPED}
    found = match_gpu_types(wanted, types)
    hint = _suggest_gpu_type(found) or f"choose one of them with {_KEY}, or another resources.partition"
    if not types:
        hint = (
            "choose another partition; some sites name types as features of nodes: "
            f"resources.constraint={wanted} (sinfo -o '%P %G %f' lists them)"
        )
    return build_error_finding(
        _KEY, wanted, f"{_KEY} is {wanted}, and partition {name} has {_format_types(types, found)}", hint
    )


def _format_types(types: Iterable[str], found: Sequence[str]) -> str:
    listed = ", ".join(sorted(types))
    if len(found) > 1:
        return f"several of that name: {', '.join(found)}"
    return f"GPUs of type {listed}" if listed else "no GPUs with a type"


def _suggest_gpu_type(found: Sequence[str]) -> str:
    return "" if not found else " or ".join(f"{_KEY}={name}" for name in found)


def _suggest_partition(wanted: str, cluster: Cluster) -> str:
    there = [name for name, types in cluster.gpu_types.items() if match_gpu_types(wanted, types)]
    if there:
        return f"choose a partition that has it: resources.partition={there[0]}"
    each = (
        f"{name} has {', '.join(sorted(set(types) - {UNTYPED})) or 'GPUs without a type'}"
        for name, types in cluster.gpu_types.items()
    )
    return f"partition {'; '.join(each)}"
