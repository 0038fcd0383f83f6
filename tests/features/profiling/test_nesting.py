"""Promises of features.profiling.summary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.profiling.summary import (
    Call,
    compute_self_times_of_calls,
    merge_intervals,
    sum_interval_lengths,
)

Tree = tuple[int, list["Tree"], int, bool]
SPAN = st.integers(0, 5)
TREES: st.SearchStrategy[Tree] = st.deferred(
    lambda: st.tuples(st.integers(0, 5), st.lists(TREES, max_size=3), st.integers(0, 5), st.booleans())
)


def calls(tree: Tree, at: int, found: list[Call]) -> int:
    """Lay a call and those within it on a thread, from `at` on; return its end."""
    before, inner, after, communicates = tree
    own = Call(at, 0, f"call-{len(found)}", communicates)
    found.append(own)
    end = at + before
    for one in inner:
        end = calls(one, end, found)
    own.end = end + after
    return int(own.end)


@given(st.lists(TREES, max_size=4), st.randoms(use_true_random=False))
def test_own_times_share_the_time_of_a_thread_without_overlap(trees: list[Tree], random: object) -> None:
    """Whatever nests in what, in any order: each moment belongs to one call, the innermost one."""
    found: list[Call] = []
    at = 0
    for tree in trees:
        at = calls(tree, at, found) + 1
    whole = sum_interval_lengths(merge_intervals((one.begin, one.end) for one in found))
    random.shuffle(found)  # type: ignore[attr-defined]  # what st.randoms gives has no name
    parts = [interval for time in compute_self_times_of_calls(found) for interval in time.own]
    assert sum(end - begin for begin, end in parts) == whole
    assert sum_interval_lengths(merge_intervals(parts)) == whole


def test_what_communication_calls_is_communication() -> None:
    """A copy within a collective is part of it; the call around it is not."""
    thread = [
        Call(0, 100, "backward", communicates=False),
        Call(10, 60, "c10d::allreduce_", communicates=True),
        Call(20, 30, "aten::copy_", communicates=False),
    ]
    found = {
        time.call.name: (time.call.communicates, time.own) for time in compute_self_times_of_calls(thread)
    }
    assert found == {
        "aten::copy_": (True, [(20, 30)]),
        "c10d::allreduce_": (True, [(10, 20), (30, 60)]),
        "backward": (False, [(0, 10), (60, 100)]),
    }


def test_call_that_outlasts_its_caller_ends_with_it() -> None:
    """Clocks are rounded: no moment counts twice."""
    thread = [Call(0, 10, "outer", communicates=False), Call(5, 11, "inner", communicates=False)]
    assert {time.call.name: time.own for time in compute_self_times_of_calls(thread)} == {
        "inner": [(5, 10)],
        "outer": [(0, 5)],
    }
