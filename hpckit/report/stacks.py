"""The stacks of all ranks as text: ranks that do the same stand together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted, ranges
from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.model.moment import local_moment
from hpckit.model.parallel.layout import Layout, name_ranks
from hpckit.model.plain import plain_fields, to_plain
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

_HEAD = lazy_pattern(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_SILENT = "no Python stacks: the process did not answer (stopped, not ready yet, or not Python)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads are at the same place: their frames, the innermost one first.

    `others` are the further threads of the first of these ranks.
    """

    ranks: tuple[RankStack, ...]
    frames: tuple[str, ...]
    others: tuple[tuple[str, ...], ...] = ()


def stack_groups(stacks: Iterable[RankStack]) -> tuple[StackGroup, ...]:
    """Return the ranks in groups, the smallest group first: it is the one that differs."""
    found: dict[tuple[str, ...], list[RankStack]] = {}
    for stack in stacks:
        found.setdefault(_threads(stack.text)[0], []).append(stack)
    groups = [
        StackGroup(ranks=tuple(ranks), frames=frames, others=tuple(_threads(ranks[0].text)[1:]))
        for frames, ranks in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks[0].rank)))


def _threads(text: str) -> list[tuple[str, ...]]:
    """Return the frames of each thread, the main thread first, which faulthandler writes last."""
    pieces = [piece for piece in _HEAD.split(text) if piece.strip()]
    found = [tuple(line.strip() for line in piece.strip().splitlines()) for piece in pieces]
    return found[::-1] or [()]


def stacks_text(run: str, attempt: int, answer: StacksAnswer, rank: int | None = None) -> str:
    """Return the answer as text, for all ranks or one."""
    if answer.round is None:
        return f"run {run} has no ranks at the moment: they are being started, or have just ended"
    stacks = [stack for stack in answer.stacks if rank in {None, stack.rank}]
    lines = [f"run {run}, attempt {attempt}, round {answer.round}, {local_moment(answer.at)}"]
    for group in stack_groups(stacks):
        lines += ["", *_group_lines(group, answer.layout, threads=rank is not None)]
    if answer.silent:
        lines += ["", f"no answer from {compress_nodes(answer.silent)}"]
    return "\n".join(lines)


def _group_lines(group: StackGroup, layout: Layout | None, *, threads: bool) -> list[str]:
    ranks = group.ranks
    nodes = compress_nodes(tuple(dict.fromkeys(rank.node for rank in ranks)))
    steps = ranges({rank.step for rank in ranks if rank.step is not None})
    parts = [f"{name_ranks([rank.rank for rank in ranks], layout)} on {nodes}"]
    parts += [f"step {steps}"] if steps else []
    parts += [", ".join(dict.fromkeys(rank.state for rank in ranks))]
    lines = ["; ".join(parts) + ":", *(f"  {line}" for line in group.frames or (_SILENT,))]
    if threads:
        for other in group.others:
            lines += ["  another thread:", *(f"    {line}" for line in other)]
    elif group.others:
        lines += [f"  and {counted(len(group.others), 'other thread')} (--rank shows them)"]
    return lines


def stacks_object(
    run: str, attempt: int, answer: StacksAnswer, stacks: Sequence[RankStack]
) -> dict[str, Any]:
    """Return the answer for programs."""
    return {
        "run": run,
        "attempt": attempt,
        **plain_fields(answer, "round at"),
        "ranks": to_plain(stacks),
        "groups": [[rank.rank for rank in group.ranks] for group in stack_groups(stacks)],
        **plain_fields(answer, "silent_nodes=silent"),
    }
