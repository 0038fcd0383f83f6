"""Sharing one composition gives what composing every point gives, in kind and hostile sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from omegaconf import OmegaConf
from tiers import thorough

from hpckit.config import session
from hpckit.config.compose import compose_sweep_points
from hpckit.config.overrides import parse_hydra_overrides, parse_simple_override_value
from hpckit.config.request import ComposeRequest
from hpckit.config.session import open_hydra_session
from hpckit.errors import ConfigError

pytestmark = pytest.mark.slow

Requester = Callable[..., ComposeRequest]

HOSTILE = {
    "config.yaml": """
defaults:
  - hpckit
  - model: small
  - loss@params.loss: plain
  - loss@params.other: plain
  - _self_
  - late
experiment_tag: ${seed}-${params.lr}
entry_point: t:main
seed: 3
params:
  lr: 0.1
  twice: ${test.twice:${params.lr}}
  alias: ${model}
  deep: {list: ["${seed}", {x: "${.y}", y: "${params.lr}"}], nothing: null}
  copy: ${.deep.list}
  width: ${model.width}
  number: ${test.number:${params.lr}}
  here: ${oc.env:HERE,there}
""",
    "late.yaml": "# @package _global_\nparams: {momentum: '${params.lr}', late: yes}\n",
    "model/small.yaml": "width: 8\ndepth: ${seed}\nname: small-${.width}\n",
    "model/big.yaml": "defaults: [small, _self_]\nwidth: ${params.lr}\nextra: {a: '${..depth}'}\n",
    "loss/plain.yaml": "scale: 1\nof: ${.scale}\n",
    "loss/scaled.yaml": "scale: ${params.lr}\nof: ${.scale}\nnested: {b: '${..of}'}\n",
}
VALUES = (
    "1",
    "2",
    "-3",
    "0",
    "0.5",
    "1e-3",
    "1.0",
    "true",
    "null",
    "abc",
    "nan",
    "'a b'",
    "x_1",
    "'${seed}'",
)
KEYS = (
    *("params.lr", "params.momentum", "params.deep.nothing", "params.twice", "model.width"),
    *("params.loss.scale", "params.other.of", "+params.new", "++model.extra.a", "++params.a.b.c"),
    *("params.deep", "params.alias", "experiment_tag", "+model.name", "params.late"),
)
GROUPS = (
    *("model=small,big", "loss@params.loss=plain,scaled", "recovery=never,default", "~model"),
    *("resources=cpu,one_gpu", "~params.copy", "checkpoint=default", "model=big"),
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder of configuration that makes values depend on each other in every way."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, text in HOSTILE.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    calls = count()
    resolvers: dict[str, Any] = {"test.twice": lambda value: f"{value}{value}"}
    resolvers["test.number"] = lambda value: (next(calls), value)[1]
    for name, function in resolvers.items():
        session.register_resolver(name, function, use_cache=True, replace=True)
    yield folder
    for name in resolvers:
        OmegaConf.clear_resolver(name)


@st.composite
def sweeps(draw: st.DrawFn, keys: tuple[str, ...], groups: tuple[str, ...]) -> list[str]:
    """Return words of a sweep of a few points."""
    chosen = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2, unique=True))
    words = [f"{key}={','.join(draw(axis()))}" for key in chosen]
    return draw(st.permutations([*words, *draw(st.lists(st.sampled_from(groups), max_size=2))]))


def axis() -> SearchStrategy[list[str]]:
    """Return some values of one key."""
    return st.lists(st.sampled_from(VALUES), min_size=2, max_size=3, unique=True)


def agree(request_for: Callable[..., ComposeRequest], words: list[str]) -> None:
    """Compose a sweep whole and point by point: the same configurations, or both refuse."""
    try:
        points = compose_sweep_points(request_for(*words, multirun=True))
    except ConfigError as refused:
        assert not all_compose(request_for, words), refused.message  # noqa: PT017
        return
    for point in points:
        (alone,) = compose_sweep_points(request_for(*point.overrides))
        # As text: 1 is not true, and nan equals nothing.
        assert repr((alone.config, alone.settings)) == repr((point.config, point.settings))


def all_compose(request_for: Callable[..., ComposeRequest], words: list[str]) -> bool:
    """Whether every point of a sweep composes by itself, or the sweep cannot even be listed."""
    from hpckit.config.points import Word, drop_missing_overrides, expand_sweep_points  # noqa: PLC0415

    with open_hydra_session(request_for()) as session:
        parsed = [Word(override=override) for override in parse_hydra_overrides(words, session.loader)]
        listed = expand_sweep_points(parsed, ())
    try:
        for overrides in listed:
            compose_sweep_points(request_for(*drop_missing_overrides(overrides)))
    except ConfigError:
        return False
    return True


@thorough
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=sweeps(KEYS, GROUPS))
def test_shared_composition_is_hydras_in_a_hostile_configuration(
    words: list[str], hostile: Path, request_for: Requester
) -> None:
    """Interpolations, packages, the order of _self_, custom resolvers and deletions included."""
    agree(lambda *given, **more: request_for(*given, config_dir=hostile, **more), words)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    words=sweeps(
        ("seed", "name", "+params.x", "resources.nodes", "cluster.gpus_per_node", "checkpoint.dir"),
        ("resources=multi_node,cpu", "recovery=patient,default", "cluster=sandbox,local"),
    )
)
def test_shared_composition_is_hydras_in_the_shipped_configuration(
    words: list[str], request_for: Requester
) -> None:
    """Typed keys, and sizes that follow the cluster."""
    agree(lambda *given, **more: request_for("entry_point=t:main", *given, **more), words)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.one_of(
        st.integers().map(str),
        st.floats().map(str),
        st.from_regex(r"[-+0-9._eE]{1,6}", fullmatch=True),
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True),
        st.sampled_from(["null", "True", "FALSE", "nan", "-inf", "1_000", "00", "0x1", "-0", "1."]),
        st.text("ab ,'\"\\$\n[]{}()=:;é", max_size=6).map(lambda text: f"'{text}'"),
    )
)
def test_plain_values_are_read_as_hydra_reads_them(text: str, request_for: Requester) -> None:
    """What is read without Hydra's parser has the parser's value and type."""
    found = parse_simple_override_value(text)
    if found is None:
        return
    with open_hydra_session(request_for()) as session:
        assert repr(found) == repr(parse_hydra_overrides([f"x={text}"], session.loader)[0].value())
