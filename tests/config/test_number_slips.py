"""Promises of what is told of words that set a text where the files have a number."""

from __future__ import annotations

import pytest
from config.conftest import Requester

from hpckit.config.slips import find_texts_set_for_number_keys
from hpckit.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lr=abc",), [("lr=abc", 0.01)]),
        (("lr=",), [("lr=", 0.01)]),
        (("seed=3", "lr='0,1'"), [("lr='0,1'", 0.01)]),
    ],
    ids=["text", "empty", "comma"],
)
def test_text_for_a_number_is_told(
    request_for: Requester, words: tuple[str, ...], told: list[tuple[str, float]]
) -> None:
    """Hydra takes it, and the run would fail on the node, hours later."""
    assert list(find_texts_set_for_number_keys(request_for("experiment=digits", *words))) == told


@pytest.mark.parametrize(
    "word", ["lr=0.3", "lr=1", "lr=null", "lr=${width}", "name=abc", "+mine=abc", "cluster=local"]
)
def test_what_may_be_meant_is_not(request_for: Requester, word: str) -> None:
    """Numbers, references, texts for texts and choices of groups."""
    assert not list(find_texts_set_for_number_keys(request_for("experiment=digits", word)))


def test_swept_text_is_told(request_for: Requester) -> None:
    """One of the values is enough."""
    swept = request_for("experiment=digits", "lr=0.1,x", multirun=True)
    assert list(find_texts_set_for_number_keys(swept)) == [("lr=0.1,x", 0.01)]


@pytest.mark.parametrize("word", ["lr=interval(0.1,1)", "lr=tag(log,interval(1e-5,1e-1))"])
def test_interval_draws_numbers(request_for: Requester, word: str) -> None:
    """It cannot be listed, and holds no text."""
    assert not list(find_texts_set_for_number_keys(request_for("experiment=digits", word, multirun=True)))


def test_half_a_number_in_a_file_of_points_is_refused_with_its_line(request_for: Requester) -> None:
    """The error names the file, the line and the value, in whichever row it is."""
    request = request_for("experiment=digits", "sweep.points=points.csv", multirun=True)
    (request.cwd / "points.csv").write_text("lr\n0.1\nnull\n0.2x\n")
    with pytest.raises(ConfigError, match=r"points\.csv, line 4: lr=0\.2x: .* is not a number"):
        list(find_texts_set_for_number_keys(request))
    (request.cwd / "points.csv").write_text("lr\n0.1\nnull\n1e-3\n")
    assert not list(find_texts_set_for_number_keys(request))
