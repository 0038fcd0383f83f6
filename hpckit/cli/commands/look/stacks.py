"""`hpckit stacks`: what every rank of a running run is doing now; the run continues."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hpckit.cli.options import add_common_options, add_launch_or_run_argument, resolve_reference_to_change
from hpckit.context import Context
from hpckit.errors import NotFoundError
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_count, format_ranges
from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.model.moment import format_local_datetime
from hpckit.model.parallel.layout import Layout, format_ranks
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.run import RunRecord
from hpckit.patterns import lazy_pattern
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.runtime.mailbox import read_stacks_answer
from hpckit.values import dataclass
from hpckit.views.awaited_answer import (
    append_supervisor_request,
    find_single_running_run,
    wait_for_supervisor_answer,
)

EPILOG = """\
examples:
  hpckit stacks digits.3            all ranks; those at the same place are grouped
  hpckit stacks digits.3 --rank 7   one rank, with all its threads

Signals, debuggers and logins are not needed: the run's own processes answer, and continue.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `stacks`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--rank", metavar="N", type=int, help="this rank only, with all threads")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the stacks of the ranks; returns 0. Raises HpckitError."""
    selection = resolve_reference_to_change(arguments, context)
    (record, answer), rank = _request_stacks(selection, context), arguments.rank
    stacks = [stack for stack in answer.stacks if rank in {None, stack.rank}]
    if rank is not None and answer.round is not None and not stacks:
        known = format_ranges(stack.rank for stack in answer.stacks)
        raise NotFoundError(f"run {record.id} has no rank {rank} now; it has {known or 'none'}")
    if arguments.json:
        context.say_json(stacks_to_json(record.id, record.attempt, answer, stacks))
    else:
        context.say(format_stacks(record.id, record.attempt, answer, rank))
    return 0


def _request_stacks(selection: Selection, context: Context) -> tuple[RunRecord, StacksAnswer]:
    launch = selection.launch
    record = find_single_running_run(selection, context, "asked for its stacks").record
    paths = launch.paths.run(record.index).attempt(record.attempt)
    asked = {"at": to_plain(context.now()), "host": this_host()}
    request = append_supervisor_request(paths.stacks_requests, asked)
    return record, wait_for_supervisor_answer(
        lambda: read_stacks_answer(paths, request), launch, record, context
    )


_HEAD = lazy_pattern(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_SILENT = "no Python stacks: it did not answer (a command without hpckit.attach, stopped, or not ready)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads are at the same place: their frames, the innermost one first.

    `others` are the further threads of the first of these ranks.
    """

    ranks: tuple[RankStack, ...]
    frames: tuple[str, ...]
    others: tuple[tuple[str, ...], ...] = ()


def group_stacks(stacks: Iterable[RankStack]) -> tuple[StackGroup, ...]:
    """Return the ranks in groups, the smallest group first: it is the one that differs."""
    found: dict[tuple[str, ...], list[RankStack]] = {}
    for stack in stacks:
        found.setdefault(_split_stack_dump_by_thread(stack.text)[0], []).append(stack)
    groups = [
        StackGroup(
            ranks=tuple(ranks), frames=frames, others=tuple(_split_stack_dump_by_thread(ranks[0].text)[1:])
        )
        for frames, ranks in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks[0].rank)))


def _split_stack_dump_by_thread(text: str) -> list[tuple[str, ...]]:
    """Return the frames of each thread, the main thread first, which faulthandler writes last."""
    pieces = [piece for piece in _HEAD.split(text) if piece.strip()]
    found = [tuple(line.strip() for line in piece.strip().splitlines()) for piece in pieces]
    return found[::-1] or [()]


def format_stacks(run: str, attempt: int, answer: StacksAnswer, rank: int | None = None) -> str:
    """Return the answer as text, for all ranks or one."""
    if answer.round is None:
        return f"run {run} has no ranks at the moment: they are being started, or have just ended"
    stacks = [stack for stack in answer.stacks if rank in {None, stack.rank}]
    lines = [f"run {run}, attempt {attempt}, round {answer.round}, {format_local_datetime(answer.at)}"]
    for group in group_stacks(stacks):
        lines += ["", *_format_stack_group(group, answer.layout, threads=rank is not None)]
    if answer.silent:
        lines += ["", f"no answer from {compress_to_hostlist(answer.silent)}"]
    return "\n".join(lines)


def _format_stack_group(group: StackGroup, layout: Layout | None, *, threads: bool) -> list[str]:
    ranks = group.ranks
    nodes = compress_to_hostlist(tuple(dict.fromkeys(rank.node for rank in ranks)))
    steps = format_ranges({rank.step for rank in ranks if rank.step is not None})
    parts = [f"{format_ranks([rank.rank for rank in ranks], layout)} on {nodes}"]
    parts += [f"step {steps}"] if steps else []
    parts += [", ".join(dict.fromkeys(rank.state for rank in ranks))]
    lines = ["; ".join(parts) + ":", *(f"  {line}" for line in group.frames or (_SILENT,))]
    if threads:
        for other in group.others:
            lines += ["  another thread:", *(f"    {line}" for line in other)]
    elif group.others:
        lines += [f"  and {format_count(len(group.others), 'other thread')} (--rank shows them)"]
    return lines


def stacks_to_json(
    run: str, attempt: int, answer: StacksAnswer, stacks: Sequence[RankStack]
) -> dict[str, Any]:
    """Return the answer for programs."""
    return {
        "run": run,
        "attempt": attempt,
        **attributes_to_json(answer, "round at"),
        "ranks": to_plain(stacks),
        "groups": [[rank.rank for rank in group.ranks] for group in group_stacks(stacks)],
        **attributes_to_json(answer, "silent_nodes=silent"),
    }
