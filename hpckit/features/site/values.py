"""Which keys of `cluster` follow from what Slurm and nodes say, each with its source. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hpckit.features.site.facts import SiteFacts
from hpckit.features.site.probe import NodeProbe
from hpckit.features.site.tries import Tries
from hpckit.model.launch import MISSING
from hpckit.model.settings import GpuOption
from hpckit.planning.checks.gpu_types import UNTYPED
from hpckit.values import dataclass

_PARTITIONS, _NODES, _ACCOUNTS = "scontrol show partition", "sinfo", "sacctmgr show user"
_TRIED = "sbatch --test-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownValue:
    """A key of the file, its value (null: it stays out), where that is from, and what to know of it."""

    key: str
    value: Any
    source: str
    note: str = ""


def find_known_values(
    facts: SiteFacts, tries: Tries, *, bin_dir: str | None = None, share: bool = False
) -> Iterator[KnownValue]:
    """Yield the keys of the file in its order; those of `resources` have that before them.

    `bin_dir` is what the user gave, `share` whether the file is for others, too.
    """
    yield KnownValue(key="kind", value="slurm", source="")
    if bin_dir is not None:
        yield KnownValue(key="bin_dir", value=bin_dir, source="--bin-dir")
    yield from _choose_partition(facts)
    limits = {
        one.name: round(one.max_time / timedelta(minutes=1))
        for one in facts.open_partitions
        if one.max_time is not None
    }
    if limits:
        note = "" if len(limits) == len(facts.open_partitions) else "others have none"
        yield KnownValue(key="time_limits_min", value=limits, source=_PARTITIONS, note=note)
    yield _choose_account(facts, share=share)
    yield from _describe_nodes(facts)
    if tries.gpu_option is not GpuOption.gpus_per_node:
        note = "--gpus-per-node is refused here"
        yield KnownValue(key="gpu_option", value=tries.gpu_option.value, source=_TRIED, note=note)
    if tries.exclusive:
        note = "jobs without it are refused here"
        yield KnownValue(key="resources.exclusive", value=True, source=_TRIED, note=note)


def _choose_partition(facts: SiteFacts) -> Iterator[KnownValue]:
    names = [one.name for one in facts.open_partitions]
    if facts.site.partitions is None:
        yield KnownValue(key="partition", value=None, source="", note="Slurm did not answer")
        return
    default = facts.default_partition
    by_slurm = any(one.default for one in facts.open_partitions)
    note = "Slurm's default" if by_slurm else "the only one that you may use"
    if default is None:
        note = "Slurm has no default here: choose one of partitions, or give cluster.partition=NAME"
    yield KnownValue(key="partition", value=default or MISSING, source=_PARTITIONS, note=note)
    yield KnownValue(key="partitions", value=names, source=_PARTITIONS, note="another one is refused")


def _choose_account(facts: SiteFacts, *, share: bool) -> KnownValue:
    mine, default = facts.accounts, facts.site.default_account
    if share:
        return KnownValue(key="account", value=None, source="", note="left to each user, or Slurm's default")
    if not mine:
        known = facts.site.settings is not None and not facts.site.settings.accounting
        note = "this Slurm has no accounting" if known else "not known; Slurm takes your default"
        return KnownValue(key="account", value=None, source="", note=note)
    if len(mine) == 1:
        return KnownValue(key="account", value=mine[0], source=_ACCOUNTS, note="your only one")
    note = f"yours: {', '.join(mine)}; Slurm's default is {default or 'not set'}. "
    limited = [f"{one.account} in {one.partition}" for one in facts.site.associations or () if one.partition]
    note += f"Some only there: {', '.join(limited)}. " if limited else ""
    return KnownValue(
        key="account", value=MISSING, source=_ACCOUNTS, note=f"{note}Write one, or give cluster.account=NAME"
    )


def _describe_nodes(facts: SiteFacts) -> Iterator[KnownValue]:
    """Yield what nodes have; one number for all is stated only where it holds for all."""
    if facts.kinds is None:
        yield KnownValue(key="gpus_per_node", value=None, source="", note="sinfo did not answer")
        return
    kinds = facts.open_kinds
    counts = {count for kind in kinds for count in kind.gpu_types.values()}
    mixed = any(len(kind.gpu_types) > 1 for kind in kinds)
    if len(counts) == 1 and not mixed:
        yield KnownValue(
            key="gpus_per_node", value=counts.pop(), source=_NODES, note="the same on all nodes with GPUs"
        )
    elif counts:
        said = "nodes have GPUs of several types" if mixed else f"a node has {_format_counts(counts)}"
        note = f"{said}: hpckit asks Slurm what those of a run's partition have of its type"
        yield KnownValue(key="gpus_per_node", value=None, source=_NODES, note=note)
    types: dict[str, dict[str, int]] = {}
    for kind in kinds:
        there = types.setdefault(kind.partition, {}) if kind.gpus else {}
        for name, count in kind.gpu_types.items():
            there[name] = max(count, there.get(name, 0))
    if types:
        yield KnownValue(key="gpu_types", value=types, source=_NODES, note=_explain_gpu_types(types))
    largest = max((kind.cpus for kind in kinds), default=0)
    if largest:
        same = len({kind.cpus for kind in kinds}) == 1
        note = "the same on all nodes" if same else "of the largest node; others have fewer, see below"
        yield KnownValue(key="cpus_per_node", value=largest, source=_NODES, note=note)


def _format_counts(counts: Collection[int]) -> str:
    return " or ".join(map(str, sorted(counts)))


def _explain_gpu_types(types: Mapping[str, Mapping[str, int]]) -> str:
    names = {name for there in types.values() for name in there} - {UNTYPED}
    if not names:
        return "GPUs without a type; resources.constraint may choose nodes by a feature"
    mixed = [name for name, there in types.items() if len(there) > 1]
    more = f"; in {', '.join(mixed)} a run without it may get any" if mixed else ""
    return f"for resources.gpu_type{more}"


_PROBED = "a job on the nodes"
_RUNTIMES = {
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "ch-run": "charliecloud",
    "podman": "podman",
}
"""What starts containers, by the program that nodes have, the preferred first."""
_MEMORY, _SHARED = ("tmpfs", "ramfs"), ("nfs", "lustre", "gpfs", "beegfs", "ceph", "weka", "fuse", "panfs")
_FABRICS = {"infiniband": "infiniband", "slingshot": "slingshot", "efa": "efa", "ethernet": "ethernet"}


def find_probed_values(probes: Sequence[NodeProbe], *, has_pyxis: bool) -> Iterator[KnownValue]:
    """Yield the keys that follow from what the probed nodes have in common.

    `has_pyxis` is whether srun takes `--container-image`. Nodes that differ leave a key out, with a note.
    """
    nodes = [probe.said for probe in probes if probe.said is not None]
    programs = _list_common([{value.split()[0] for value in said.get("runtime", ())} for said in nodes])
    kinds = ["pyxis"] if has_pyxis else []
    kinds += [kind for program, kind in _RUNTIMES.items() if program in programs and kind not in kinds]
    if kinds:
        more = f"; also {', '.join(kinds[1:])}" if kinds[1:] else ""
        source = "srun --help" if has_pyxis else _PROBED
        yield KnownValue(
            key="container_runtime", value=kinds[0], source=source, note=f"for container=auto{more}"
        )
    places = _list_common([_list_local_folders(said) for said in nodes])
    if places:
        note = "for data at the node, the first that is large enough"
        yield KnownValue(key="node_scratch", value=places, source=_PROBED, note=note)
    fabrics = {_find_fabric(said.get("fabric", ())) for said in nodes}
    if len(fabrics) == 1 and (fabric := fabrics.pop()) is not None:
        yield KnownValue(key="fabric", value=fabric, source=_PROBED)
    elif len(fabrics) > 1:
        yield KnownValue(key="fabric", value=None, source=_PROBED, note="nodes have different ones")


def _list_common(found: Sequence[Collection[str]]) -> list[str]:
    """Return what all nodes have, in the order of the first."""
    return [value for value in (found[0] if found else ()) if all(value in other for other in found)]


def _list_local_folders(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the folders on a node's own disks; those of a job by the variable that names them."""
    names = {said.get(key, ("",))[0]: f"${key.upper()}" for key in ("tmpdir", "slurm_tmpdir")}
    rows = [place.rsplit(" ", 3) for place in said.get("scratch", ())]
    local = [row[0] for row in rows if len(row) > 1 and not row[1].startswith((*_MEMORY, *_SHARED))]
    return list(dict.fromkeys(names.get(folder, folder) for folder in local))


def _find_fabric(devices: Sequence[str]) -> str | None:
    said = " ".join(devices).casefold()
    return next((name for mark, name in _FABRICS.items() if mark in said), None)
