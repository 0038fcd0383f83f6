"""Whether the states of a model surely do not fit on the GPUs that a job gets. Pure.

Only what is sure counts: parameters and gradients, and Adam's state where the run registers Adam.
Activations and buffers come on top. Of a GPU type that comes with several sizes of memory, the
largest is assumed; a type that is not known here says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpckit.model.cluster.site import Site, parse_gres
from hpckit.model.counted import format_count
from hpckit.model.finding import Finding, build_error_finding
from hpckit.model.parallel.model_check import CheckedModel, StageMemory
from hpckit.model.plan import LaunchPlan, ResourceSpec
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.limits import get_account_partition_qos, list_possible_partitions

_GIB = 2**30
_LARGEST_GIB = {
    "p100": 16,
    "t4": 16,
    "v100": 32,
    "a10": 24,
    "a30": 24,
    "l4": 24,
    "a40": 48,
    "l40": 48,
    "l40s": 48,
    "a100": 80,
    "h100": 96,
    "h200": 144,
    "b200": 192,
    "mi250": 64,
    "mi250x": 64,
    "mi300x": 192,
}
"""GiB of the largest GPU that is sold under a name; of an MI250, of one of its two devices."""
_TYPE = lazy_pattern(r"(?:nvidia[_-]|amd[_-]|tesla[_-])*([a-z]+[0-9]+[a-z]*)(?:[_.-].*)?", re.IGNORECASE)


def max_gpu_memory_bytes(gpu_type: str) -> int | None:
    """Return the most bytes that a GPU of this type may have; None if the type is not known.

    Example: `max_gpu_memory_bytes("nvidia_a100_3g.20gb")` is 80 GiB, which is an upper bound.
    """
    named = _TYPE.fullmatch(gpu_type)
    size = _LARGEST_GIB.get(named[1].lower()) if named else None
    return None if size is None else size * _GIB


def find_gpu_memory_problems(
    plan: LaunchPlan, models: Sequence[CheckedModel], site: Site
) -> Iterator[Finding]:
    """Yield an error for each run whose states are larger than its GPUs."""
    resources = {index: job.resources for job in plan.jobs for index in job.runs}
    for model in models:
        asked = resources.get(model.run)
        gpu = None if asked is None else _find_largest_gpu_of_job(asked, site)
        if gpu is None or not model.trains or model.offloads:
            continue
        kind, room = gpu
        stage = max(model.stages, key=lambda stage: _sum_training_state_bytes(stage, model))
        if (needed := _sum_training_state_bytes(stage, model)) <= room:
            continue
        of = f"run {model.run}: " if len(plan.runs) > 1 else ""
        if model.fallback:
            of += f"on {format_count(model.nodes, 'node')} (parallel.fallback): "
        states = ", gradients and Adam's state" if model.adam else " and gradients"
        yield build_error_finding(
            "parallel.fallback" if model.fallback else "parallel",
            model.layout,
            f"{of}a rank needs {needed / _GIB:.1f} GiB for parameters{states} alone, and a GPU of "
            f"type {kind} has {room // _GIB} GiB at most",
            "shard over more ranks (parallel=fsdp, more nodes), or take a GPU with more memory; "
            "`hpckit plan` counts with other layouts",
        )


def _sum_training_state_bytes(stage: StageMemory, model: CheckedModel) -> int:
    return stage.training_state_bytes if model.adam else stage.parameter_bytes + stage.gradient_bytes


def _find_largest_gpu_of_job(resources: ResourceSpec, site: Site) -> tuple[str, int] | None:
    """Return the type with the most memory that a job may get, and its bytes; None if unknown."""
    asked = _list_gpu_types_in_gres(parse_gres(resources.gres or ""))
    if resources.gpu_type:
        asked = [resources.gpu_type]
    if asked:
        return _pick_gpu_with_most_memory([asked])
    if not resources.gpus_per_node or site.nodes is None:
        return None
    names = list_possible_partitions(site, get_account_partition_qos(resources))
    nodes = (node for node in site.nodes if node.partition in names and node.gres.get("gpu", 0))
    return _pick_gpu_with_most_memory([_list_gpu_types_in_gres(node.gres) for node in nodes])


def _list_gpu_types_in_gres(gres: Mapping[str, int]) -> list[str]:
    """Return the types of the GPUs of a node; an empty text for GPUs of unknown type."""
    named = {name.removeprefix("gpu:"): count for name, count in gres.items() if ":" in name}
    named = {name: count for name, count in named.items() if f"gpu:{name}" in gres}
    rest = gres.get("gpu", 0) > sum(named.values())
    return [*named, *([""] if rest else [])]


def _pick_gpu_with_most_memory(nodes: Sequence[Sequence[str]]) -> tuple[str, int] | None:
    found = {kind: max_gpu_memory_bytes(kind) for types in nodes for kind in types}
    known = {kind: size for kind, size in found.items() if size is not None}
    if not known or len(known) < len(found):
        return None
    return max(known.items(), key=lambda one: one[1])
