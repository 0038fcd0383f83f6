"""Sweeps: which points, in which order, and composed as a single launch would."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence

import pytest
from omegaconf import DictConfig

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]

_SWEEP = {"multirun": True}
_COMMAND = ("experiment=command", 'command="./one.sh ${params.i}"')


def test_sweep_interpolates_params_into_the_command(request_for: Requester) -> None:
    """300 points of one parameter are 300 commands, each with its own."""
    points = compose_sweep_points(request_for(*_COMMAND, "+params.i=range(0,300)", multirun=True))
    assert [point.settings.command for point in points] == [f"./one.sh {i}" for i in range(300)]
    assert points[299].config["params"] == {"i": 299}


@pytest.mark.parametrize("form", ["{}", "choice({})"])
def test_points_have_their_values_as_they_were_typed(form: str, request_for: Requester) -> None:
    """Not as Python prints them: True, 1000.0."""
    texts = ["true", "FALSE", "1e3", "1000", "1_000", ".5", "-0", "010", "1e-04", "a b"]
    (*words,) = (*_COMMAND, "+params.i=1", f"+params.x={form.format(', '.join(texts))}")
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [point.overrides[-1] for point in points] == [f"+params.x={text}" for text in texts]
    values = [True, False, 1000.0, 1000, 1000, 0.5, 0, "010", 0.0001, "a b"]
    assert repr([point.config["params"]["x"] for point in points]) == repr(values)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("'a,b',c", ["'a,b'", "c"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{a:1},x", ["{a:1}", "x"]),
        (r"a\,b,c", [r"a\,b", "c"]),
        ("'a,b',true,[True,1e3]", ["'a,b'", "true", "[True,1e3]"]),
        ("choice('a,b',true)", [r"a\,b", "true"]),
        ("null,1e3", ["null", "1e3"]),
        ("sort(choice(2,1))", ["1", "2"]),
    ],
)
def test_points_of_values_with_commas(given: str, words: list[str], request_for: Requester) -> None:
    """A comma in quotes, brackets or behind a backslash separates none."""
    points = compose_sweep_points(request_for(*_COMMAND, "+params.i=1", f"+params.x={given}", multirun=True))
    assert [point.overrides[-1] for point in points] == [f"+params.x={word}" for word in words]


def test_sweep_points_come_in_hydras_order(request_for: Requester) -> None:
    """The last axis changes fastest, and the other words stay as they were given."""
    words = ("experiment=command", "command=[true]", "seed=1,2", "+x=choice(a,b)")
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [point.overrides[2:] for point in points] == [
        ("seed=1", "+x=a"),
        ("seed=1", "+x=b"),
        ("seed=2", "+x=a"),
        ("seed=2", "+x=b"),
    ]
    assert points[0].overrides[:2] == words[:2]


@pytest.mark.parametrize(
    "swept",
    [
        ("seed=range(1,4)",),
        ("seed=1,2", "+x=0.5,null,true,abc"),
        ("resources=glob(one*)", "cluster=sandbox"),
        ("recovery=never,default", "seed=1,2"),
        ("+x='a, b','${seed}',\"$(c)\"", "seed=1,2"),
        ("+x={a:1},{b:2},3",),
        ("+x=[1,2],[3]",),
        ("resources.nodes=1,2", "resources={nodes:4}"),
        ("seed=1,2", "seed=5"),
        ("cluster.kind=local,slurm", "name=null,b"),
        ("+resources.partition=a,b", "+env.X=1,2", "++params.y.z=range(0,2)"),
        ("~recovery", "seed=sort(3,1,2)"),
    ],
)
def test_sweep_points_compose_as_a_single_launch_does(swept: tuple[str, ...], request_for: Requester) -> None:
    """A point's overrides, given to a single launch, compose to the very same configuration."""
    words = ("experiment=command", "command=[true]", *swept)
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert len(points) > 1
    for point in points:
        assert compose_sweep_points(request_for(*point.overrides)) == (point,)


def test_sweep_of_values_is_composed_by_hydra_once(
    monkeypatch: pytest.MonkeyPatch, request_for: Requester
) -> None:
    """Points that differ in plain values share one composition per choice of groups."""
    loads: list[Sequence[str]] = []
    load = Session.compose_config

    def counted(session: Session, overrides: Sequence[str]) -> DictConfig:
        loads.append(overrides)
        return load(session, overrides)

    monkeypatch.setattr(Session, "compose_config", counted)
    points = compose_sweep_points(request_for("seed=range(0,50)", "recovery=never,default", multirun=True))
    assert (len(points), len(loads)) == (100, 2)


def test_sweep_of_one_point_needs_no_axis(request_for: Requester) -> None:
    """`-m` without anything swept is one run."""
    assert len(compose_sweep_points(request_for(multirun=True))) == 1


@pytest.mark.parametrize(
    ("word", "mode", "message", "hint"),
    [
        ("seed=1,2", {}, "seed=1,2 asks for a sweep", r"Add -m \(--multirun\)\.$"),
        ("+x=1,2", {}, "x=1,2 asks for a sweep", r"Add -m .*'\+x=\[1,2\]'"),
        ("seed=range(0,3)", {}, "asks for a sweep", r"Add -m \(--multirun\)\.$"),
        ("seed=interval(0,1)", _SWEEP, "needs sweep.sampler=random or optuna", "range"),
        ("cluster=glob(zz*)", _SWEEP, "has no values", "--info groups"),
        ("seed=range(0,0)", _SWEEP, "has no values", "range"),
        ("seed=range(0,3,0)", _SWEEP, "cannot be listed", "key=value"),
        ("seed=range(0,1000000)", _SWEEP, "at most 100000", "Narrow"),
        ("seed=1,b", _SWEEP, r"seed=b: .*Integer.*\(in the run .*seed=b\)", "takes a whole number"),
    ],
)
def test_sweep_that_cannot_be_says_why(
    word: str, mode: Mapping[str, bool], message: str, hint: str, request_for: Requester
) -> None:
    """Each way to ask for an impossible sweep is one message with what to do."""
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request_for(word, **mode))
    assert re.search(hint, caught.value.hint)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "words",
    [
        ("seed=range(0,1000000000000)",),
        ("+x=range(0,1e12)",),
        ("+x=range(0,1e12,0.001)",),
        ("+x=shuffle(range(0,1000000000000))",),
        ("+x=range(0,1e12)", "+y=range(0,1000000000000)", "sweep.zip=[[x,y]]"),
    ],
)
def test_sweep_without_end_is_refused_at_once(words: Sequence[str], request_for: Requester) -> None:
    """A range is never read further than to the first point that is too many."""
    signal.alarm(60)
    try:
        with pytest.raises(ConfigError, match="at most 100000 are launched"):
            compose_sweep_points(request_for(*words, multirun=True))
    finally:
        signal.alarm(0)
