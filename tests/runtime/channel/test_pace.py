"""What the pace of supervisor and agents promises: bounded hearing, and time for who is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.runtime.channel.pace import BEAT_S, are_many_nodes_delayed, message_interval_s


@given(nodes=st.integers(1, 20_000), timeout_s=st.floats(2, 600), least_s=st.sampled_from((0.5, 1)))
def test_pace_leaves_room_for_two_words_in_a_node_timeout(
    nodes: int, timeout_s: float, least_s: float
) -> None:
    """However many nodes there are, none is taken for lost for one word that came late."""
    assert least_s <= message_interval_s(nodes, timeout_s, least_s=least_s) <= timeout_s / 2


@pytest.mark.parametrize(("nodes", "pace"), [(1, BEAT_S), (500, BEAT_S), (1000, 2.0), (2000, 2.0)])
def test_pace_slows_down_with_the_number_of_nodes_only_where_they_are_many(nodes: int, pace: float) -> None:
    """A small job's lost node is found as soon as ever; a supervisor hears a thousand at ease."""
    assert message_interval_s(nodes, 6.0) == pace


@pytest.mark.parametrize(
    ("quiet_s", "held_up"),
    [([], False), ([7.0] * 7 + [0.5] * 993, False), ([6.1] + [3.5] * 7, True), ([2.5] * 1000, False)],
    ids=["none", "a few are lost", "the first of many", "late, but not quiet"],
)
def test_many_that_fall_silent_together_are_held_up(quiet_s: list[float], *, held_up: bool) -> None:
    """One or a few are lost as ever; many at once share what holds them up."""
    assert are_many_nodes_delayed(quiet_s, 6.0) is held_up
