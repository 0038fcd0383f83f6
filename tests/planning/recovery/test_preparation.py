"""Which nodes are too slow to prepare, and whom a failed preparation blames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.failure import Cause
from hpckit.planning.recovery.loss import build_preparation_failure, find_slow_nodes

_TIMES = st.lists(st.floats(0.1, 1e4), max_size=20)


def test_a_node_five_times_as_slow_as_half_of_all_is_named() -> None:
    """It is named by its own slowness: a node that only waits for it is not."""
    waiting = {"n3": ("n1",), "n4": ("n3", "n1")}
    assert find_slow_nodes(600, [100.0, 110.0], waiting) == ("n3",)
    assert find_slow_nodes(500, [100.0, 110.0], waiting) == ()


def test_nobody_is_slow_before_half_of_the_nodes_are_there() -> None:
    """With one node of four there, the others may as well be the usual ones."""
    assert find_slow_nodes(1e6, [1.0], {"n2": (), "n3": (), "n4": ()}) == ()
    assert find_slow_nodes(1e6, [], {"n1": ()}) == ()


@given(_TIMES, st.floats(0, 60, exclude_max=True))
def test_seconds_are_never_slow(done: list[float], waited_s: float) -> None:
    """Small data may come late for any reason: under a minute nobody is blamed."""
    assert find_slow_nodes(waited_s, done, {"n1": ()}) == ()


def test_a_damaged_node_is_blamed_by_name() -> None:
    """The failure has its node, so that a spare takes its place."""
    failure = build_preparation_failure({"n2": (Cause.data_damaged, "the copy is damaged, twice")}, 4)
    assert failure is not None
    assert (failure.cause, failure.node) == (Cause.data_damaged, "n2")
    assert failure.message == "n2: the copy is damaged, twice"


@given(st.integers(1, 20), st.integers(1, 20))
def test_container_that_starts_elsewhere_is_a_fault_of_the_node(refused: int, nodes: int) -> None:
    """One that starts on no node, or on few of many, is a fault of the image: no retry helps."""
    problems = {f"n{number}": (Cause.container, "no /dev/fuse") for number in range(min(refused, nodes))}
    failure = build_preparation_failure(problems, nodes)
    assert failure is not None
    of_image = len(problems) == nodes or (nodes >= 8 and 2 * len(problems) > nodes)
    assert failure.cause is (Cause.container if of_image else Cause.unhealthy)
    assert (failure.node is None) == of_image


def test_no_node_is_blamed_for_a_source_that_changed() -> None:
    """What no node could do is nobody's fault, and ends the run."""
    problems = {f"n{number}": (Cause.data_refused, f"/x has changed: {number % 4}") for number in range(9)}
    failure = build_preparation_failure({**problems, "n9": (Cause.scratch_full, "full")}, 10)
    assert failure is not None
    assert (failure.cause, failure.node) == (Cause.data_refused, None)
    first, *_, last = failure.message.splitlines()
    assert (first, last) == ("n[0,4,8]: /x has changed: 0", "and 2 more")
    assert build_preparation_failure({}, 4) is None
