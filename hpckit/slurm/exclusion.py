"""Which nodes the next attempt of a job is to leave out, without making it impossible to start."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.plan import ResourceSpec
from hpckit.planning.nodes.usable import usable_nodes
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import JobTerms
from hpckit.slurm.query import cluster_nodes, excluded_nodes, reserved_nodes, terms
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """The nodes that a job is to leave out, and those of the wanted ones that it cannot do without.

    `changes` is false if it leaves out these nodes already.
    """

    nodes: tuple[str, ...]
    changes: bool
    spared: tuple[str, ...]


def find_exclusion(
    commands: SlurmCommands, job: str, asked: ResourceSpec, wanted: Sequence[str]
) -> Exclusion:
    """Return the nodes that a job is to leave out, including earlier ones.

    `asked` is what it was submitted with. Raises SchedulerAwayError or SchedulerRefusedError.
    """
    before = excluded_nodes(job, commands)
    new = [node for node in wanted if node not in before]
    spared = _spared(commands, job, asked, before, new)
    after = (*before, *(node for node in new if node not in spared))
    return Exclusion(nodes=after, changes=after != before, spared=tuple(spared))


def _spared(
    commands: SlurmCommands,
    job: str,
    asked: ResourceSpec,
    before: Sequence[str],
    new: Sequence[str],
) -> list[str]:
    """Return the new nodes that the job cannot do without: it would be held indefinitely."""
    found = terms(job, commands) if new else None
    if found is None:
        return []
    usable = _usable(commands, asked, found)
    if usable is None:
        return [*new]
    spared = [node for node in new if node in found.required]
    left = len(usable.difference(before, new)) + len(spared)
    others = [node for node in new if node in usable and node not in spared]
    # The last ones are spared first: the caller names the worst ones first.
    return spared + others[::-1][: max(0, asked.allocated_nodes - left)]


def _usable(commands: SlurmCommands, asked: ResourceSpec, found: JobTerms) -> frozenset[str] | None:
    """Return the nodes that the job could get; None if its constraint is not understood."""
    reserved = found.reservation and reserved_nodes(commands, found.reservation)
    return usable_nodes(
        cluster_nodes(commands),
        asked,
        partitions=found.partition.split(","),
        reserved=reserved or None,
    )
