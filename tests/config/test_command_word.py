"""The command behind `--`: every word comes through as the shell gave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpckit.config.command import build_command_override
from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]
Writer = Callable[[dict[str, str]], Path]

_GRAMMAR = st.sampled_from([*"\\\"'$%{}[](),=:~@ \t\n\r?|><&;`*#!+-./", "true", "1e3", "???"])
_LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
_BYTES = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"])
"""What Python makes of arguments that are no UTF-8."""

WORDS = (
    st.lists(st.one_of(_GRAMMAR, _LETTERS, _BYTES))
    .map("".join)
    .filter(lambda w: "${" not in w and w != "???")
)
ODD = ["", "null", "-inf", ".5", "1e3", "a, b", "\\", '\\"', "'\"", "[x", "$HOME", "x=1,2"]


@given(st.lists(WORDS, min_size=1))
@example(ODD)
@settings(max_examples=200)
def test_the_override_holds_exactly_these_words(words: list[str]) -> None:
    """Hydra reads one list of texts, and no sweep, whatever the words have of its grammar."""
    (override,) = OverridesParser.create().parse_overrides([build_command_override(words)])
    assert not override.is_sweep_override()
    read = override.value()
    assert isinstance(read, list)
    assert [str(word) for word in read] == words


@given(st.lists(WORDS, min_size=1).filter(lambda words: words[0] != ""))
@example(["x", *ODD])
@settings(max_examples=15)
def test_any_words_survive_to_the_composed_configuration(words: list[str]) -> None:
    """Composed by Hydra and resolved by OmegaConf, they are the command that is frozen."""
    request = ComposeRequest(command=tuple(words), environ={}, cwd=Path("/"))
    (point,) = compose_sweep_points(request)
    assert point.config["command"] == words


def test_the_mark_of_a_missing_value_is_refused() -> None:
    """OmegaConf has no way to write it as a text: newer versions refuse every value `???`."""
    with pytest.raises(ConfigError, match=r"the word \?\?\?") as caught:
        build_command_override(["python", "train.py", "???"])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("${seed}", "7"),
        ("--seed=${seed}!", "--seed=7!"),
        ('${oc.env:NOPE,"a b"}', "a b"),
        ("${oc.env:NOPE,'a b'}", "a b"),
        ("\\${HOME}", "${HOME}"),
        ("${", "${"),
        ("\\", "\\"),
    ],
)
def test_interpolations_are_read_and_what_only_looks_like_one_is_not(
    request_for: Requester, word: str, read: str
) -> None:
    r"""`${key}` inserts a value, `\${key}` does not, and neither does what cannot be read."""
    (point,) = compose_sweep_points(request_for("seed=7", command=("echo", word)))
    assert [str(one) for one in point.config["command"]] == ["echo", read]


def test_both_kinds_of_quotes_in_an_interpolation_are_refused(request_for: Requester) -> None:
    """Hydra cannot keep such an override; the error says what can be done."""
    word = "${oc.env:A,\"x\"} ${oc.env:B,'y'}"
    with pytest.raises(ConfigError, match="both kinds of quotes") as caught:
        compose_sweep_points(request_for(command=("echo", word)))
    assert "${params.x}" in caught.value.hint


def test_without_an_experiment_it_is_experiment_command(request_for: Requester) -> None:
    """The point's overrides say all of it, and compose to the same without the command."""
    (point,) = compose_sweep_points(request_for("seed=7", command=("python", "a b")))
    assert point.overrides == ("seed=7", "experiment=command", "command=[python,a b]")
    (again,) = compose_sweep_points(request_for(*point.overrides))
    assert again.config == point.config


def test_an_experiment_of_ones_own_is_kept(request_for: Requester, write_conf: Writer) -> None:
    """Its other keys hold; only the command is replaced."""
    write_conf({"experiment/mine": "# @package _global_\nname: mine\ncommand: old\n"})
    (point,) = compose_sweep_points(request_for("experiment=mine", command=("new",)))
    assert (point.settings.name, point.settings.command) == ("mine", ["new"])


def test_a_configuration_without_experiments_takes_a_command(
    request_for: Requester, write_conf: Writer
) -> None:
    """A primary configuration of the user's may choose none."""
    write_conf({"config": "defaults: [hpckit, _self_]\nlr: 0.1\n"})
    (point,) = compose_sweep_points(request_for(command=("run", "${lr}")))
    assert [str(word) for word in point.config["command"]] == ["run", "0.1"]


def test_a_sweep_gives_each_run_its_words(request_for: Requester) -> None:
    """What is swept reaches the command by interpolation."""
    points = compose_sweep_points(request_for("+params.lr=1,2", command=("a", "${params.lr}"), multirun=True))
    assert [str(point.config["command"][1]) for point in points] == ["1", "2"]


def test_a_command_given_twice_is_refused(request_for: Requester) -> None:
    """`command=` and `--` contradict each other."""
    with pytest.raises(ConfigError, match="given twice"):
        compose_sweep_points(request_for("command=ls", command=("pwd",)))
