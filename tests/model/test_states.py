"""Promises of hpckit.model.states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.states import BaseState, RunState, StateFlag, parse_slurm_state


@pytest.mark.parametrize("base", list(BaseState))
def test_every_base_state_means_something_for_a_run(base: BaseState) -> None:
    """The map from Slurm's states to ours is total; only the unknown word means unknown."""
    state = parse_slurm_state(base.value)
    assert state.base is base
    assert (state.run_state is RunState.unknown) == (base is BaseState.unknown)


@pytest.mark.parametrize("flag", list(StateFlag))
def test_every_flag_alone_has_a_base_state(flag: StateFlag) -> None:
    """A state shown as a flag only still means something for a run."""
    state = parse_slurm_state(flag.value)
    assert state.flags == {flag}
    assert state.run_state is not RunState.unknown


@given(st.text())
def test_parse_state_never_raises_and_keeps_the_words(text: str) -> None:
    """Whatever a newer Slurm says is kept for people and never taken for an end."""
    state = parse_slurm_state(text)
    assert state.text == text.strip()
    assert state.base is not BaseState.unknown or not state.ended


@pytest.mark.parametrize(
    ("text", "base", "ended"),
    [
        ("CANCELLED by 1001", BaseState.cancelled, True),
        ("CANCELLED+", BaseState.cancelled, True),
        ("RUNNING,COMPLETING", BaseState.running, False),
        ("FAILED,COMPLETING", BaseState.failed, False),
        ("COMPLETING", BaseState.running, False),
        ("REQUEUED", BaseState.pending, False),
        ("REQUEUE_HOLD", BaseState.pending, False),
        ("OUT_OF_MEMORY", BaseState.out_of_memory, True),
        ("PREEMPTED", BaseState.preempted, True),
        ("FROZEN_BY_FUTURE_SLURM", BaseState.unknown, False),
        ("", BaseState.unknown, False),
    ],
)
def test_parse_state_reads_every_wording(text: str, base: BaseState, ended: bool) -> None:  # noqa: FBT001
    """Suffixes, flags and unknown words are read for what they are."""
    state = parse_slurm_state(text)
    assert (state.base, state.ended) == (base, ended)


def test_run_states_end_where_nothing_more_happens() -> None:
    """Exactly the four ends are ends."""
    assert {state for state in RunState if state.ended} == {
        RunState.completed,
        RunState.failed,
        RunState.cancelled,
        RunState.interrupted,
    }


def test_run_state_of_a_newer_version_is_unknown() -> None:
    """A state this version does not know is read as unknown."""
    assert RunState("hibernating") is RunState.unknown
