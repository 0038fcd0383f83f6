"""Which keys of `cluster` follow from what Slurm says, each with its source and what to know. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpckit.features.site.facts import SiteFacts
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
