"""Promises of hpckit.config.staged: how a command line is shared out between stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.show import render_config
from hpckit.errors import ConfigError

PIPELINE = """\
# @package _global_
name: pipeline
entry_point: pipeline:train
lr: 1
stages:
  prepare: {overrides: [entry_point=pipeline:prepare, resources=cpu], once: true}
  train: {overrides: [resources=one_gpu]}
  evaluate: {overrides: [experiment=own]}
"""
OWN = """\
# @package _global_
name: other
entry_point: other:main
beams: 4
"""
WORDS = ("experiment=pipeline", "cluster=local", "cluster.gpus_per_node=1")


@pytest.fixture
def request_staged(request_for: Callable[..., Any], write_conf: Callable[..., Any]) -> Any:
    """Return a maker of requests for an experiment with stages."""
    write_conf({"experiment/pipeline": PIPELINE, "experiment/own": OWN})
    return lambda *words, **fields: request_for(*WORDS, *words, **fields)


def test_stages_are_composed_of_their_own_words(request_staged: Any) -> None:
    """A stage may ask for other resources, or be another experiment; the launch is one."""
    found = compose_sweep_points(request_staged())
    assert [(one.stage, one.settings.entry_point) for one in found] == [
        ("prepare", "pipeline:prepare"),
        ("train", "pipeline:train"),
        ("evaluate", "other:main"),
    ]
    assert [one.settings.resources.gpus_per_node for one in found] == [0, 1, None]
    assert {one.settings.name for one in found} == {"pipeline"}
    assert {one.config["name"] for one in found} == {"pipeline"}
    assert found[2].config["beams"] == 4


def test_words_for_one_stage_count_last_and_for_it_alone(request_staged: Any) -> None:
    """`train:` overrules what the stage says itself, and no other stage hears of it."""
    found = compose_sweep_points(request_staged("train:resources=cpu", "train:lr=3", "evaluate:beams=8"))
    assert [one.settings.resources.gpus_per_node for one in found] == [0, 0, None]
    assert [one.config.get("lr") for one in found] == [1, 3, None]
    assert found[2].config["beams"] == 8


def test_interpolation_in_the_words_of_a_stage_has_the_value_of_each_run(
    request_staged: Any, write_conf: Callable[..., Any]
) -> None:
    """`${lr}` in `stages.*.overrides` follows a sweep, and words for that stage alone."""
    told = PIPELINE.replace("{overrides: [experiment=own]}", "{}")
    told += "  report: {overrides: ['+shown=${lr}', '+only=${params.here}']}\n"
    write_conf({"experiment/told": told})
    words = ("experiment=told", "report:+params.here=7")
    found = compose_sweep_points(request_staged(*words, "lr=2,3", multirun=True))[-2:]
    assert [(one.config["shown"], one.config["only"]) for one in found] == [(2, 7), (3, 7)]
    (once,) = compose_sweep_points(request_staged(*words, "report:lr=9"))[-1:]
    assert once.config["shown"] == 9


def test_sweep_spans_every_stage_that_is_not_run_once(request_staged: Any) -> None:
    """Point i of a stage belongs with point i of another, whichever of them an axis is set in."""
    found = compose_sweep_points(request_staged("seed=1,2", "train:lr=5,6", multirun=True))
    stages = [one.stage for one in found]
    assert stages == ["prepare", *["train"] * 4, *["evaluate"] * 4]
    assert [(one.settings.seed, one.config["lr"]) for one in found[1:5]] == [
        *((1, 5), (1, 6), (2, 5), (2, 6))
    ]
    assert [one.settings.seed for one in found[5:]] == [1, 1, 2, 2]
    assert found[0].settings.seed == 0


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("trian:lr=1", "there is no stage trian. Did you mean train?"),
        ("prepare:lr=1,2", "stage prepare runs once"),
        ("+stages.train.once=true,false", "have the same stages"),
        ("train:nonsense=1", "(in stage train)"),
        ("evaluate:lr=1", "there is no key lr"),
    ],
)
def test_words_that_fit_no_stage_are_refused(request_staged: Any, word: str, said: str) -> None:
    """The message says which stage does not take it."""
    with pytest.raises(ConfigError) as raised:
        compose_sweep_points(request_staged(word, multirun=True))
    assert said in raised.value.message


def test_words_for_a_stage_want_an_experiment_with_stages(request_for: Any) -> None:
    """Nobody's lr is lost silently."""
    with pytest.raises(ConfigError, match="there is no stage train") as raised:
        compose_sweep_points(request_for("train:lr=1", "cluster=local"))
    assert "There are no stages here" in raised.value.hint


def test_sweep_in_a_stage_s_own_words_is_refused(request_staged: Any) -> None:
    """What is swept stands on the command line."""
    with pytest.raises(ConfigError, match="which is a sweep"):
        compose_sweep_points(request_staged("stages.train.overrides=['seed=1,2']"))


def test_stages_can_be_left_out_like_any_key(request_staged: Any) -> None:
    """Hydra's own words reach into them."""
    found = compose_sweep_points(request_staged("~stages.evaluate"))
    assert [one.stage for one in found] == ["prepare", "train"]


def test_configurations_of_all_stages_are_shown(request_staged: Any) -> None:
    """`--cfg` prints one document a stage."""
    text = render_config(request_staged("train:seed=7"), package="seed")
    documents = text.split("---\n")
    assert len(documents) == 3
    assert "seed: 7" in documents[1]
