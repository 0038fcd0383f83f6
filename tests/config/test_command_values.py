"""The values in a command: each arrives with its type in an application that reads overrides."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError
from hpckit.model.command import encode_override_value

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]

_ODD = [
    *("", "1", "1e3", ".5", "1_0", "null", "True", "NaN", "-inf", "a b", "a, b", "it's", '"'),
    *("'\"", "{a: 1}", "[1", "a=b", "choice(1,2)", "x:y", "é", "\\", "a\\'", "\n", "${x}"),
    *("\\${x}", "~"),
]
_GRAMMAR = st.lists(st.sampled_from([*"\\\"'$%{}[](),=:~@ \t\n?|*#+-./_e1x0", "true", "${"]))
_TEXTS = st.one_of(
    st.sampled_from(_ODD),
    _GRAMMAR.map("".join),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
).filter(lambda text: text != "???")
_KEYS = st.one_of(
    st.from_regex(r"[A-Za-z_][\w /,:=()\[\]{}.-]*", fullmatch=True).filter(str.isascii),
    st.integers(),
    st.booleans(),
).filter(lambda key: str(key).lower() not in {"true", "false", "null", "nan", "inf", "infinity"})
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _TEXTS)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(_KEYS, inner)), max_leaves=6
)


def _read(word: str) -> Any:
    """Return what an application reads in a word of its command line, with the value at `x`."""
    (override,) = OverridesParser.create().parse_overrides([word])
    assert not override.is_sweep_override()
    config = OmegaConf.create({"task": [word]})  # as Hydra keeps it: all of it has to be readable
    OmegaConf.update(config, "x", override.value(), force_add=True)
    return OmegaConf.to_container(config, resolve=True)["x"]  # type: ignore[call-overload,index]


@given(_VALUES)
@example(_ODD)
@settings(max_examples=100)
def test_hydra_reads_the_very_same_value(value: Any) -> None:
    """Nothing changes its type: not a number that is a text, a null, nor what a text has in it."""
    read = _read(f"x={encode_override_value(value)}")
    assert repr(read) == repr(value)


@pytest.mark.parametrize("text", ["sgd", "a b", "/data/x-1.0.pt", "s3://a/b", "2024-01-01", "v1.2"])
def test_plain_words_stay_what_they_are(text: str) -> None:
    """So that a script that splits its words at `=` reads them, too."""
    assert encode_override_value(text) == text
    assert [encode_override_value(one) for one in (3, 0.1, 1e-05, True)] == ["3", "0.1", "1e-05", "True"]
    assert math.isnan(_read(f"x={encode_override_value(math.nan)}"))


def test_a_key_without_a_form_is_refused() -> None:
    """Hydra has no quotes for the keys of a mapping."""
    for key in ("1", "null", "", "a'b", "é"):
        with pytest.raises(ConfigError, match=re.escape(repr(key))) as caught:
            encode_override_value({key: 1})
        assert caught.value.hint


_SWEPT = "null,true,0.1,'1','a, b','[1]',[1,a],{b:'2',c:null},''"
_AS_VALUES = [None, True, 0.1, "1", "a, b", "[1]", [1, "a"], {"b": "2", "c": None}, ""]


@pytest.mark.parametrize(("before", "key"), [("", "x"), ("+", "x.y"), ("++", "x/y@z"), ("~", "x@y.z")])
def test_values_of_a_sweep_arrive_in_a_word_of_an_application(
    request_for: Requester, before: str, key: str
) -> None:
    """In a word of the form of an override, whatever the sweep gives."""
    word = f"{before}{key}=${{params.x}}"
    request = request_for(f"+params.x={_SWEPT}", command=("app", word), multirun=True)
    told = [point.config["command"][1] for point in compose_sweep_points(request)]
    assert [one.partition("=")[0] for one in told] == [f"{before}{key}"] * len(told)
    assert [_read(f"x={one.partition('=')[2]}") for one in told] == _AS_VALUES


@pytest.mark.parametrize(
    "text",
    [
        "app x=${params.x} y=1",
        "app 'x=${params.x}'",
        'app "x=${params.x}" z',
        "app x='${params.x}'",
        'app x="${params.x}"',
        "app y=${seed} x=${params.x}",
    ],
)
def test_values_arrive_in_a_command_that_is_one_text(
    request_for: Requester, write_conf: Writer, text: str
) -> None:
    """A shell's grammar stands before Hydra's there, with quotes or without."""
    write_conf({"experiment/mine": f"# @package _global_\ncommand: {json.dumps(text)}"})
    request = request_for("experiment=mine", f"+params.x={_SWEPT}", multirun=True)
    words = [shlex.split(point.config["command"]) for point in compose_sweep_points(request)]
    found = [next(word for word in line if word.startswith("x=")) for line in words]
    assert [_read(word) for word in found] == _AS_VALUES


@pytest.mark.parametrize("word", ["${params.x}", "--x=${params.x}", "a-${params.x}", "x=[${params.x}]"])
def test_a_null_has_no_text_in_another_word(request_for: Requester, word: str) -> None:
    """It is refused, in each point of a sweep, and other values are as they were."""
    request = request_for("+params.x=1,'1',null", command=("app", word), multirun=True)
    with pytest.raises(ConfigError, match=r"command\[1\]: params\.x is null") as caught:
        compose_sweep_points(request)
    assert "key=${...}" in caught.value.hint
    one, two = compose_sweep_points(request_for("+params.x=1,'1'", command=("app", word), multirun=True))
    assert str(one.config["command"][1]) == word.replace("${params.x}", "1")
    assert one.config["command"] == two.config["command"] or word == "${params.x}"


def test_variables_of_env_are_texts(request_for: Requester) -> None:
    """`env` reads no override."""
    command = ("env", "GPU=${params.gpu}", "app", "gpu=${params.gpu}", "\\${params.gpu}")
    (point,) = compose_sweep_points(request_for("+params.gpu='0'", command=command))
    assert point.config["command"] == ["env", "GPU=0", "app", 'gpu="0"', "${params.gpu}"]


def test_values_that_optuna_chooses_arrive_alike(request_for: Requester) -> None:
    """They are put into the words on a node, where nothing is composed."""
    search = ("sweep.sampler=optuna", "sweep.samples=3", "sweep.metric=loss")
    command = ("app", "x=${params.x}")
    for choice in ("a,'1','b, c'", "0.5,null,true", "null,[1,a],{b:'2'}"):
        request = request_for(f"+params.x={choice}", *search, command=command, multirun=True)
        point = compose_sweep_points(request)[0]
        assert point.search is not None
        for value in point.search.axes[0].values:
            applied = point.search.apply_values_to_config(point.config, {"params.x": value})
            assert _read(applied["command"][1]) == value
