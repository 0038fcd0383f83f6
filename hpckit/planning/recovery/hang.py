"""Finds the rank that causes a hang. Pure.

It reads what all ranks were doing. One rank that stands still blocks all others, which then wait for it in a
collective. So the guilty rank is the one that the kernel has stopped, or that has not entered the collective
in which the others wait, or that is a step behind, or the only one that does not wait for others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import takewhile

from hpckit.model.diagnosis.collectives import CollectiveWait
from hpckit.model.failure import Cause, Failure, RankStack, StalledRank
from hpckit.model.parallel.layout import Layout, format_ranks
from hpckit.patterns import lazy_pattern
from hpckit.values import replace

_FRAME = lazy_pattern(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_TORCH = lazy_pattern(r"[/\\]torch[/\\]")
_LIBRARY = lazy_pattern(r"/(site|dist)-packages/|/python3\.\d+t?/|[/\\]torch[/\\]|/hpckit/runtime/|^<")
_COLLECTIVE = lazy_pattern(r"torch[/\\](distributed|nn[/\\]parallel|autograd[/\\]graph)")
"""Where a rank waits for others: DistributedDataParallel does so inside of backward()."""
_WAITING_OUTSIDE = ("T", "t", "D")
"""Letters of /proc/PID/status for a stopped, a traced and an unkillable process."""
_FRAMES = 3
_LEAVING = "end_within_last_step"
"""The function of `StepLoop` that ends a loop which was left."""


def build_hang_failure(
    stall: StalledRank,
    stacks: Sequence[RankStack],
    wait: CollectiveWait | None = None,
    layout: Layout | None = None,
) -> Failure:
    """Return the failure to record for a hang, with the guilty rank if there is one.

    `wait` is the collective in which ranks wait, if they said so; `layout` is that of the round.
    """
    wait = add_code_location_to_wait(wait, stacks)
    words = (
        f"{_describe_standstill(stall, format_ranks((stall.rank,), layout))} (limit {stall.limit_s:.1f} s)"
    )
    left = _find_ranks_out_of_loop(stacks)
    guilty = left[0] if left else _find_stack_that_causes_hang(stacks, None if wait is None else wait.culprit)
    if guilty is None:
        return Failure(
            cause=Cause.hang,
            message=prepend_collective_wait(words, wait),
            step=stall.step,
            signature=_compute_hang_signature(stacks),
            collective=wait,
        )
    if left:
        who = format_ranks([rank.rank for rank in left], layout)
        words = (
            f"{who} left the loop over steps in step {guilty.step}, and others did not: all ranks "
            f"have to leave it in the same step; {words}"
        )
    else:
        doing = f"{format_ranks((guilty.rank,), layout)} on {guilty.node} {_describe_rank_activity(guilty)}"
        words = prepend_collective_wait(f"{words}; {doing}", wait)
    return Failure(
        cause=Cause.hang,
        message=words,
        rank=guilty.rank,
        node=guilty.node,
        step=stall.step,
        traceback=guilty.text or None,
        signature=_compute_hang_signature([guilty]),
        collective=wait,
    )


def prepend_collective_wait(message: str, wait: CollectiveWait | None) -> str:
    """Return a message with what is known of a collective: first, because tables cut messages."""
    return message if wait is None else f"{wait.words}; {message}"


def add_code_location_to_wait(
    wait: CollectiveWait | None, stacks: Sequence[RankStack]
) -> CollectiveWait | None:
    """Return the wait with where in the user's code the ranks wait, from the stack of one."""
    if wait is None or wait.place is not None:
        return wait
    waiting = [stack for stack in stacks if stack.rank in wait.waiting and _waits_in_collective(stack)]
    for rank in waiting:
        for frame in _FRAME.finditer(extract_main_thread_stack(rank.text)):
            if not _LIBRARY.search(frame["file"]):
                place = f"{_file_name(frame['file'])}:{frame['line']} in {frame['name']}"
                return replace(wait, place=place, words=f"{wait.words}, at {place}")
    return wait


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _describe_standstill(stall: StalledRank, name: str) -> str:
    if stall.idle:
        return f"no rank wrote anything or computed for {stall.silent_s:.1f} s"
    if stall.over:
        return f"{name} did not come to its end for {stall.silent_s:.1f} s after its steps"
    if stall.step is None:
        return f"no first step began on {name} for {stall.silent_s:.1f} s"
    return f"no step began on {name} for {stall.silent_s:.1f} s after step {stall.step}"


def _find_stack_that_causes_hang(stacks: Sequence[RankStack], culprit: int | None) -> RankStack | None:
    for suspects in (
        [stack for stack in stacks if stack.state.startswith(_WAITING_OUTSIDE)],
        [stack for stack in stacks if stack.rank == culprit],
        _list_stacks_at_earliest_step(stacks),
        [stack for stack in stacks if stack.text and not _waits_in_collective(stack)],
    ):
        if len(suspects) == 1:
            return suspects[0]
    return None


def _list_stacks_at_earliest_step(stacks: Sequence[RankStack]) -> list[RankStack]:
    steps = [stack.step for stack in stacks if stack.step is not None]
    if not steps or min(steps) == max(steps):
        return []
    return [stack for stack in stacks if stack.step == min(steps)]


def _find_ranks_out_of_loop(stacks: Sequence[RankStack]) -> list[RankStack]:
    """Return the ranks that have left their loop while all others wait for them in a collective."""
    left = [stack for stack in stacks if _has_left_step_loop(stack)]
    others = [stack for stack in stacks if stack not in left]
    return left if others and all(map(_waits_in_collective, others)) else []


def _has_left_step_loop(one: RankStack) -> bool:
    """Whether a rank has left its loop by `break` or `return`, and waits for the others to."""
    return any(
        frame["name"] == _LEAVING and frame["file"].endswith("/hpckit/runtime/rank/steps.py")
        for frame in _FRAME.finditer(extract_main_thread_stack(one.text))
    )


def _waits_in_collective(one: RankStack) -> bool:
    """Whether the running code is torch's, in a collective, and not user code called from one."""
    files = [frame["file"] for frame in _FRAME.finditer(extract_main_thread_stack(one.text))]
    return any(map(_COLLECTIVE.search, takewhile(_TORCH.search, files)))


def extract_main_thread_stack(text: str) -> str:
    """Return the stack of the main thread from the output of faulthandler: the last one."""
    return text.strip().rpartition("\n\n")[2]


def _describe_rank_activity(one: RankStack) -> str:
    frame = _FRAME.search(extract_main_thread_stack(one.text))
    if frame is None or one.state.startswith(_WAITING_OUTSIDE):
        return f"is {one.state}"
    return f"is in {frame['name']} ({_file_name(frame['file'])}:{frame['line']})"


def _compute_hang_signature(stacks: Sequence[RankStack]) -> str:
    """Return a signature that is the same for hangs at the same place, on any rank."""
    named = [(stack, [*_FRAME.finditer(extract_main_thread_stack(stack.text))][:_FRAMES]) for stack in stacks]
    places = sorted({(stack.state[:1], *[frame["name"] for frame in frames]) for stack, frames in named})
    return f"{Cause.hang}-{hashlib.sha256(repr(places).encode()).hexdigest()[:12]}"
