"""Keys that advance together: which points there are, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError
from hpckit.planning.sweep.points import combine_axis_values

Requester = Callable[..., ComposeRequest]

_COMMAND = ("experiment=command", "command=[true]", "cluster=local")


def varied(request: ComposeRequest, *keys: str) -> list[tuple[str, ...]]:
    """Return, for each point, its words for these keys."""
    return [
        tuple(word for word in point.overrides if word.lstrip("+").partition("=")[0] in keys)
        for point in compose_sweep_points(request)
    ]


def test_zipped_keys_advance_together_and_others_multiply(request_for: Requester) -> None:
    """The group counts as one axis, at the place of its first key."""
    words = ("+lr=0.1,0.01", "seed=1,2", "+batch=range(32,34)", "sweep.zip=[[lr,batch]]")
    assert varied(request_for(*_COMMAND, *words, multirun=True), "lr", "seed", "batch") == [
        ("+lr=0.1", "seed=1", "+batch=32"),
        ("+lr=0.1", "seed=2", "+batch=32"),
        ("+lr=0.01", "seed=1", "+batch=33"),
        ("+lr=0.01", "seed=2", "+batch=33"),
    ]


def test_groups_are_zipped_like_values_and_a_file_may_say_so(
    request_for: Requester, write_conf: Callable[..., object]
) -> None:
    """A group of files changes with a plain key; the experiment names both."""
    text = "# @package _global_\ncommand: [true]\nsweep: {zip: [[recovery, seed]]}\n"
    write_conf({"experiment/mine": text})
    words = ("experiment=mine", "cluster=local", "recovery=never,patient", "seed=1,2")
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [(point.settings.seed, point.settings.recovery.requeue) for point in points] == [
        (1, False),
        (2, True),
    ]
    for point in points:
        assert compose_sweep_points(request_for(*point.overrides)) == (point,)


def test_zip_pairs_keys_of_stages(request_for: Requester, write_conf: Callable[..., object]) -> None:
    """A key of one stage is named as it is typed; every stage has its points in the same order."""
    stages = "stages: {train: {}, evaluate: {}}\n"
    write_conf({"experiment/mine": f"# @package _global_\ncommand: [true]\nlr: 0\n{stages}"})
    words = ("experiment=mine", "cluster=local", "lr=1,2", "evaluate:seed=3,4")
    points = compose_sweep_points(request_for(*words, "sweep.zip=[[lr,evaluate:seed]]", multirun=True))
    assert [(point.stage, point.config["lr"], point.settings.seed) for point in points] == [
        ("train", 1, 0),
        ("train", 2, 0),
        ("evaluate", 1, 3),
        ("evaluate", 2, 4),
    ]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("+lr=1,2", "seed=1,2,3"), "lr has 2 values and seed has 3 values", "same number"),
        (("+lr=1,2", "seed=1"), "names seed, which is not swept", "the swept keys are lr"),
        (("+lr=1,2", "++seeds=1,2"), r"names seed, .* Did you mean seeds\?", "seed=1,2"),
        (("+lr=1,2", "seed=shuffle(1,2)"), "shuffled", "in the order"),
        (("+lr=1,2", "seed=1,2", "seed=3,4"), "swept twice", "once"),
        (("+lr=1,2", "seed=interval(1,2)"), "needs sweep.sampler", "range"),
        (
            ("+lr=1,2", "seed=1,2", "sweep.sampler=random", "sweep.samples=2"),
            "sweep.sampler=random draws",
            "remove one of the two",
        ),
    ],
)
def test_zip_that_cannot_be_says_why(
    words: tuple[str, ...], message: str, hint: str, request_for: Requester
) -> None:
    """One error names the keys and what they have."""
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request_for(*_COMMAND, *words, "sweep.zip=[[lr,seed]]", multirun=True))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sweep.zip=[lr,seed]", "not a ListConfig"),
        ("sweep.zip=[[lr]]", r"\[lr\] is not a group"),
        ("sweep.zip=[[lr,seed],[lr,x]]", "names lr twice"),
    ],
)
def test_zip_that_is_no_list_of_groups_shows_one(word: str, message: str, request_for: Requester) -> None:
    """The hint has an example to copy."""
    words = (*_COMMAND, "+lr=1,2", "seed=1,2", "+x=1,2", word)
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request_for(*words, multirun=True))
    assert "[[lr,batch]]" in caught.value.hint


def test_single_run_needs_no_zip(request_for: Requester) -> None:
    """The words of one point compose alone, with the group among them."""
    (point,) = compose_sweep_points(request_for(*_COMMAND, "+lr=1", "seed=2", "sweep.zip=[[lr,seed]]"))
    assert point.settings.seed == 2


@st.composite
def axes_and_groups(draw: st.DrawFn) -> tuple[list[list[str]], list[list[int]]]:
    """Draw axes, some of which advance together."""
    places = draw(st.permutations(range(draw(st.integers(0, 6)))))
    axes: list[list[str]] = [[] for _ in places]
    groups: list[list[int]] = []
    rest = list(places)
    while rest:
        size = draw(st.integers(1, len(rest)))
        group, rest = rest[:size], rest[size:]
        length = draw(st.integers(1, 3))
        for place in group:
            axes[place] = [f"{place}:{value}" for value in range(length)]
        if size > 1:
            groups.append(group)
    return axes, groups


@settings(max_examples=200, deadline=None)
@given(drawn=axes_and_groups())
def test_expansion_has_every_combination_of_groups_once(
    drawn: tuple[list[list[str]], list[list[int]]],
) -> None:
    """As many points as the groups multiply to, all different, in order, members in step."""
    axes, groups = drawn
    points = combine_axis_values(axes, groups)
    joined = {place for group in groups for place in group}
    units = sorted([*groups, *([one] for one in range(len(axes)) if one not in joined)], key=min)
    rows = [tuple(axes[place].index(point[place]) for place in range(len(axes))) for point in points]
    firsts = [tuple(row[min(unit)] for unit in units) for row in rows]
    assert firsts == list(product(*(range(len(axes[min(unit)])) for unit in units)))
    assert all(len({row[place] for place in group}) == 1 for row in rows for group in groups)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(["never", "patient", "default"]),
            st.sampled_from(["1", "0.5", "a", "'x, y'", "[1]", "null"]),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_zipped_points_compose_as_their_words_do_alone(
    values: list[tuple[str, str]], request_for: Requester
) -> None:
    """Point i is what the i-th words compose to one at a time."""
    recoveries, others = zip(*values, strict=True)
    axes = (f"recovery={','.join(recoveries)}", f"+x={','.join(others)}")
    points = compose_sweep_points(request_for(*_COMMAND, *axes, "sweep.zip=[[recovery,x]]", multirun=True))
    assert len(points) == len(values)
    for point, (recovery, other) in zip(points, values, strict=True):
        words = (*_COMMAND, f"recovery={recovery}", f"+x={other}", "sweep.zip=[[recovery,x]]")
        (alone,) = compose_sweep_points(request_for(*words))
        assert (alone.config, alone.settings) == (point.config, point.settings)
