"""Promises of config.schema: what a key takes is said in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.config.schema import convert_to_key_unit, describe_allowed_values
from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]


def _keys(kind: Any, above: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        yield f"{above}{name}"
        if is_dataclass(hint):
            yield from _keys(hint, f"{above}{name}.")


@pytest.mark.parametrize("key", list(_keys(LaunchConfig)))
def test_every_key_is_explained_without_pythons_names(key: str) -> None:
    """No module path, no bracket of a type, no `|`, no name of a type, no empty list."""
    said = describe_allowed_values(key).removeprefix(f"{key} takes ")
    assert said != describe_allowed_values(key)
    assert not re.search(r"hpckit|\w\.\w(?<!\d)|\w\[|\||\b(int|str|float|bool|dict|Any|None)\b", said)
    assert "of ." not in said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("notify.events", "a list of these: failed, completed, resumed, stalled, finished."),
        ("tracker.mode", "one of online, offline, or null."),
        ("cluster.price_per_gpu_hour", "a number, such as 1.5, or null."),
        ("observe.profile", "a mapping of at_step, steps, ranks, tool."),
        ("observe.profile.ranks", "a list of whole numbers."),
        ("checkpoint.interval_min", "a number, such as 1.5, or null: minutes, a day is 1440, or 2h."),
        ("env", "a mapping of names to texts."),
    ],
)
def test_values_in_words(key: str, said: str) -> None:
    """As a user writes them."""
    assert describe_allowed_values(key) == f"{key} takes {said}"


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("timeout_min", "2h", "120"),
        ("timeout_min", "24:00:00", "1440"),
        ("timeout_min", "1-12:00:00", "2160"),
        ("mem_gb", "64GB", "64"),
        ("mem_gb", "512MiB", "0.5"),
        ("mem_gb", "1T", "1024"),
        ("interval_min", "90s", "1.5"),
        ("hang_min_s", "2m", "120"),
    ],
)
def test_number_with_a_unit_is_that_of_the_key(name: str, text: str, read: str) -> None:
    """As people type times and sizes, and copy them from `sbatch --time`."""
    assert convert_to_key_unit(name, text, whole=False) == read


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timeout_min", "90s"),
        ("timeout_min", "2 x"),
        ("timeout_min", "2G"),
        ("timeout_min", "2h,3h"),
        ("mem_gb", "2h"),
        ("timeout_min", "null"),
        ("nodes", "2h"),
    ],
)
def test_other_texts_stay_as_they_are(name: str, text: str) -> None:
    """What is no number of the key is refused in words later."""
    assert convert_to_key_unit(name, text, whole=True) == text


@pytest.mark.parametrize("key", ["params.wait_min", "wait_min", "my.timeout_min", "name", "env.x_s"])
def test_keys_that_are_no_numbers_of_ours_take_no_units(key: str, request_for: Requester) -> None:
    """Keys of users are theirs, whatever they end in."""
    (point,) = compose_sweep_points(request_for(f"++{key}=2h"))
    held: Any = point.config
    for part in key.split("."):
        held = held[part]
    assert held == "2h"


@pytest.mark.parametrize(
    "words",
    [
        ["resources={timeout_min:2h}"],
        ["++resources.timeout_min=2h"],
        ["+wait=2h", "resources.timeout_min=${wait}"],
        ["+params.t=1:30:00", "resources.timeout_min=${params.t}"],
    ],
)
def test_units_are_read_wherever_a_number_comes_from(words: list[str], request_for: Requester) -> None:
    """A mapping, a value of another key: the number asks for its unit, not the way to it."""
    (point,) = compose_sweep_points(request_for(*words))
    assert point.settings.resources.timeout_min in (90, 120)
    assert point.overrides == tuple(words)


def test_units_in_sweeps_and_stages(request_for: Requester, write_conf: Writer) -> None:
    """Each value of a sweep, and the words of a stage in a file or on the command line."""
    words = ("resources.timeout_min=choice(1h,90)", "+params.w=1h,2:00:00")
    points = compose_sweep_points(request_for(*words, "sweep.job_timeout_min=${params.w}", multirun=True))
    found = [(p.settings.resources.timeout_min, p.settings.sweep.job_timeout_min) for p in points]
    assert found == [(60, 60), (60, 120), (90, 60), (90, 120)]
    first = "first: {overrides: [resources.timeout_min=2h]}"
    text = f"# @package _global_\nentry_point: x:y\nstages: {{{first}, then: {{}}}}\n"
    write_conf({"experiment/mine": text})
    points = compose_sweep_points(request_for("experiment=mine", "then:resources.timeout_min=1:30:00"))
    assert [point.settings.resources.timeout_min for point in points] == [120, 90]


def test_value_with_a_unit_that_does_not_fit_says_what_its_key_takes(request_for: Requester) -> None:
    """Also where another key has the value."""
    with pytest.raises(ConfigError, match=r"90s.* could not be converted") as caught:
        compose_sweep_points(request_for("+params.t=90s", "resources.timeout_min=${params.t}"))
    assert caught.value.hint.startswith("resources.timeout_min takes a whole number")


@pytest.mark.parametrize(
    ("words", "partition"),
    [
        (["resources.partition=[a,b]"], "a,b"),
        (["resources.partition='a,b'"], "a,b"),
        (["resources.partition=[a]"], "a"),
        (["resources.partition=a"], "a"),
        (["resources={partition:[a,b]}"], "a,b"),
        (["+params.p=b", "resources.partition=[a,${params.p}]"], "a,b"),
        (["resources.partition=null"], None),
    ],
)
def test_list_of_partitions_is_as_good_as_a_text_with_commas(
    words: list[str], partition: str | None, request_for: Requester
) -> None:
    """Slurm takes the one in which the job starts first; QOS and the cluster's keys are lists, too."""
    (point,) = compose_sweep_points(request_for(*words))
    assert point.settings.resources.partition == partition


def test_list_of_partitions_in_a_file_is_a_list_of_names(request_for: Requester, write_conf: Writer) -> None:
    """Numbers are names, as YAML reads them."""
    text = "# @package _global_\nentry_point: x:y\ncluster: {partition: [p, 7], qos: [a, b]}\n"
    write_conf({"experiment/mine": text})
    (point,) = compose_sweep_points(request_for("experiment=mine"))
    assert (point.settings.cluster.partition, point.settings.cluster.qos) == ("p,7", "a,b")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("resources.account=[a,b]", "one account"),
        ("resources.partition={a:1}", "a list of names"),
        ("resources.partition=[]", "a list of names"),
        ("resources.qos=[[a]]", "a list of names"),
    ],
)
def test_other_lists_are_refused_with_what_the_key_takes(
    word: str, hint: str, request_for: Requester
) -> None:
    """Slurm takes several partitions and QOS, and one account."""
    with pytest.raises(ConfigError) as raised:
        compose_sweep_points(request_for(word))
    assert hint in raised.value.hint
