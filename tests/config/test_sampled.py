"""Sampled sweeps: what is drawn from a space, and what an adaptive one freezes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError
from hpckit.model.search import Axis, AxisKind, DerivedKey, Pruner

Requester = Callable[..., ComposeRequest]

_COMMAND = ("experiment=command", 'command="./one.sh ${params.lr} ${params.n}"')
_SPACE = ("+params.lr=tag(log,interval(1e-5,1e-1))", "+params.n=int(interval(1,8))", "seed=1,2,3")
_RANDOM = ("sweep.sampler=random", "sweep.samples=6", "sweep.seed=7")
_OPTUNA = ("sweep.sampler=optuna", "sweep.samples=3", "sweep.metric=loss")


def test_random_points_follow_from_the_seed_alone(request_for: Requester) -> None:
    """The same seed draws the same points, whatever the order of the words."""
    one = compose_sweep_points(request_for(*_COMMAND, *_SPACE, *_RANDOM, multirun=True))
    other = compose_sweep_points(request_for(*_RANDOM, *reversed(_SPACE), *_COMMAND, multirun=True))
    assert [point.config for point in one] == [point.config for point in other]
    assert len({str(point.config["params"]) for point in one}) == 6
    changed = (*_RANDOM[:2], "sweep.seed=8")
    assert compose_sweep_points(request_for(*_COMMAND, *_SPACE, *changed, multirun=True))[0] != one[0]


def test_random_points_compose_as_a_single_launch_does(request_for: Requester) -> None:
    """A drawn point's overrides, given to a single launch, compose to the same configuration."""
    words = (*_COMMAND, *_SPACE, "recovery=choice(default,never)", *_RANDOM)
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert compose_sweep_points(request_for(*points[3].overrides)) == (points[3],)
    assert points[3].settings.command.startswith(f"./one.sh {points[3].config['params']['lr']}")


def test_random_sampler_without_samples_says_what_is_missing(request_for: Requester) -> None:
    """How many points are drawn has no default."""
    with pytest.raises(ConfigError, match=r"sweep\.samples does not say how many"):
        compose_sweep_points(request_for("seed=1,2", "sweep.sampler=random", multirun=True))


def test_optuna_freezes_the_space_and_what_follows_from_it(request_for: Requester) -> None:
    """All points are alike; copies of searched keys, and texts with them, are known."""
    words = (*_COMMAND, *_SPACE[:2], "+opt=adam,sgd", "+copy=${opt}", "+k=range(2,11,4)", *_OPTUNA)
    points = compose_sweep_points(request_for(*words, "sweep.pruner=median", multirun=True))
    search = points[0].search
    assert points == (points[0],) * 3
    assert search is not None
    assert search.axes == (
        Axis(key="params.lr", kind=AxisKind.real, low=1e-5, high=1e-1, log=True),
        Axis(key="params.n", kind=AxisKind.integer, low=1, high=8),
        Axis(key="opt", kind=AxisKind.choice, values=("adam", "sgd")),
        Axis(key="k", kind=AxisKind.integer, low=2, high=10, step=4),
    )
    assert search.followers == (
        DerivedKey(path=("command",), pieces=("./one.sh ", "params.lr", " ", "params.n", "")),
        DerivedKey(path=("copy",), copies="opt"),
    )
    assert (search.metric, search.pruner) == ("loss", Pruner.median)
    assert not any("interval" in word or "opt=" in word for word in points[0].overrides)


def test_optuna_values_put_in_give_what_composing_them_gives(request_for: Requester) -> None:
    """A configuration with asked values is the one that a single launch would have composed."""
    words = (*_COMMAND, *_SPACE[:2], "+hidden=[64],[64,32]", "+copy=[0,${params.n}]")
    (point, *_) = compose_sweep_points(request_for(*words, *_OPTUNA, multirun=True))
    assert point.search is not None
    values = {"params.lr": 0.0625, "params.n": 5, "hidden": [64, 32]}
    applied = point.search.apply_values_to_config(point.config, values)
    given = ("+params.lr=0.0625", "+params.n=5", "+hidden=[64,32]", words[-1])
    (single,) = compose_sweep_points(request_for(*_COMMAND, *given, *_OPTUNA))
    assert applied == single.config


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("recovery=default,never",), "recovery is a group", "sampler=random"),
        (("resources.nodes=1,2",), r"resources\.nodes is searched, and resources", "random"),
        (("+x=int(interval(1,4))", "resources.nodes=${x}"), r"resources\.nodes follows x", "rand"),
        (("+x=a,b", "+m={a:1,b:2}", "+y='${m.${x}}'"), "y is computed from x", "random"),
        (("seed=1,2", "++seed=3,4"), "seed is swept twice", "one choice"),
        (("+x=tag(log,interval(0,1))",), "no logarithm of 0", "Raise"),
        (("+x=interval(2,1)",), "least to its largest", r"interval\(1,2\)"),
        (("+x=tag(log,choice(1,2))",), "the tag log is for interval", "tag"),
        (("+x=interval(0,1)", "sweep.metric=null"), r"sweep\.metric does not say", "loss"),
        (("+x=interval(0,1)", "sweep.seed=-1"), "Optuna takes 0 to", "seed=1"),
    ],
)
def test_optuna_refuses_what_no_node_could_set(
    words: tuple[str, ...], message: str, hint: str, request_for: Requester
) -> None:
    """What would have to be composed, or is settled beforehand, is one message with a way out."""
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request_for(*_COMMAND[:1], "command=[true]", *_OPTUNA, *words, multirun=True))
    assert hint.replace("\\", "") in caught.value.hint
