"""Promises of the words of faults and of schedules."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from hpckit.errors import ConfigError, UsageError
from hpckit.model.fault import Fault, FaultKind, FaultTarget
from hpckit.planning.faults import (
    generate_random_fault_schedule,
    group_words_by_fault,
    parse_delay,
    parse_externally_injected_faults,
    parse_planned_faults,
)

PLANNED = [
    "kill rank=1 step=17",
    "hang rank=0 step=30",
    "hang_gil rank=0 step=30 seconds=2.5",
    "raise rank=2 step=3 times=always",
    "exit rank=0 step=3 times=4 code=9",
    "oom rank=0 step=3 limit_mb=64",
    "fill_disk rank=0 step=3 limit_mb=10 folder=/scratch/x",
    "leak rank=0 step=3 mb_per_step=2",
]
OUTSIDE = ["kill rank=1", "stop agent node=n2", "term supervisor", "requeue", "flip fraction=0.25"]


@pytest.mark.parametrize("text", PLANNED)
def test_planned_fault_reads_back_from_its_text(text: str) -> None:
    """A planned fault and its text are the same thing."""
    (fault,) = parse_planned_faults([text])
    assert fault.text == text
    assert parse_planned_faults([fault.text]) == (fault,)


@pytest.mark.parametrize("text", OUTSIDE)
def test_outside_fault_reads_back_from_its_text(text: str) -> None:
    """A fault from outside and its text are the same thing."""
    (fault,) = parse_externally_injected_faults([text])
    assert fault.text == text
    assert parse_externally_injected_faults([fault.text]) == (fault,)


def test_planned_fault_is_of_rank_0_and_once_unless_said() -> None:
    """Without a word about rank and times, it happens to rank 0, once."""
    (fault,) = parse_planned_faults(["abort step=0"])
    assert fault == Fault(kind=FaultKind.abort, rank=0, step=0, times=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with ''"),
        ("kil rank=1 step=2", "begins with 'kil'"),
        ("requeue step=2", "begins with 'requeue'"),
        ("kill rank=1", "lacks step"),
        ("fill_disk step=1", "lacks folder"),
        ("kill rank=-1 step=2", "rank is '-1'"),
        ("kill rank=x step=2", "rank is 'x'"),
        ("kill step=2 times=0", "times is '0'"),
        ("hang step=2 seconds=nan", "seconds is 'nan'"),
        ("exit step=2 code=256", "code is '256'"),
        ("kill step=2 code=1", "takes no 'code=1'"),
        ("kill agent step=2", "takes no 'agent'"),
        ("kill step=2 17", "takes no '17'"),
    ],
)
def test_bad_planned_fault_is_one_clear_error(text: str, said: str) -> None:
    """The error quotes the words, names what is wrong with them, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse_planned_faults(["kill step=1", text])
    assert said in caught.value.message
    assert repr(text) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["hang rank=0", "requeue rank=1", "flip fraction=1", "preempt", "kill step=3"]
)
def test_bad_outside_fault_is_a_usage_error(text: str) -> None:
    """What can't be done from outside, or not so, is refused."""
    with pytest.raises(UsageError):
        parse_externally_injected_faults([text])


def test_words_of_a_command_line_are_split_at_kinds() -> None:
    """Quoted, separate or with commas: each kind begins a new fault."""
    words = ["kill rank=1", "stop", "agent", "node=n2", "tear,requeue"]
    texts = group_words_by_fault(words)
    assert texts == ("kill rank=1", "stop agent node=n2", "tear", "requeue")
    assert [fault.target for fault in parse_externally_injected_faults(texts)][:2] == [
        FaultTarget.rank,
        FaultTarget.agent,
    ]


def drawn(seed: int, count: int, *words: str, mtbf_s: int = 60) -> list[tuple[timedelta, Fault]]:
    """Return the first strikes of a schedule."""
    strikes = generate_random_fault_schedule(
        seed, timedelta(seconds=mtbf_s), parse_externally_injected_faults(words), 4, ("n1", "n2")
    )
    return list(itertools.islice(strikes, count))


def test_schedule_is_the_same_for_a_seed_and_another_for_another() -> None:
    """A seed is all it takes to repeat a rehearsal."""
    assert drawn(7, 50, "kill", "requeue") == drawn(7, 50, "kill", "requeue")
    assert drawn(7, 50, "kill", "requeue") != drawn(8, 50, "kill", "requeue")


def test_schedule_of_a_seed_never_changes() -> None:
    """A schedule written down years ago is still the one that a seed stands for."""
    first = [(round(after.total_seconds(), 3), fault.text) for after, fault in drawn(7, 3, *OUTSIDE)]
    assert first == [(23.479, "kill rank=1"), (27.991, "term supervisor"), (31.575, "term supervisor")]


def test_schedule_has_the_mean_time_between_faults() -> None:
    """Times between strikes are exponential: their mean is the one asked for, and so is spread."""
    ends = [after.total_seconds() for after, _ in drawn(1, 4000, "kill")]
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *ends])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(60, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


def test_schedule_draws_what_a_fault_leaves_open_and_keeps_what_it_says() -> None:
    """Ranks, nodes and places are drawn over all there are; what was said stays."""
    strikes = drawn(3, 400, "kill", "stop rank=2", "kill agent", "kill_node", "flip", "requeue")
    faults = [fault for _, fault in strikes]
    assert {fault.rank for fault in faults if fault.kind is FaultKind.stop} == {2}
    killed = [fault for fault in faults if fault.kind is FaultKind.kill]
    assert {one.rank for one in killed if one.target is FaultTarget.rank} == {0, 1, 2, 3}
    assert {one.node for one in killed if one.target is FaultTarget.agent} == {"n1", "n2"}
    assert {fault.node for fault in faults if fault.kind is FaultKind.kill_node} == {"n1", "n2"}
    places = {fault.fraction for fault in faults if fault.kind is FaultKind.flip}
    assert len(places) > 10
    assert all(place is not None and 0 <= place < 1 for place in places)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("2m", 120), ("2min", 120), ("1h", 3600)]
)
def test_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    """Seconds unless a unit says otherwise."""
    assert parse_delay(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "2d", "soon"])
def test_duration_that_is_none_is_refused(text: str) -> None:
    """Nothing, negative times and unknown units are errors that say how to write one."""
    with pytest.raises(UsageError, match="is not a duration"):
        parse_delay(text)
