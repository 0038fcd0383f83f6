"""Promises of config.types: what a key takes is said in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import pytest

from hpckit.config.types import in_own_unit, takes
from hpckit.model.launch import LaunchConfig


def _keys(kind: Any, above: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        yield f"{above}{name}"
        if is_dataclass(hint):
            yield from _keys(hint, f"{above}{name}.")


@pytest.mark.parametrize("key", list(_keys(LaunchConfig)))
def test_every_key_is_explained_without_pythons_names(key: str) -> None:
    """No module path, no bracket of a type, no `|`, no name of a type, no empty list."""
    said = takes(key).removeprefix(f"{key} takes ")
    assert said != takes(key)
    assert not re.search(
        r"hpckit|\w\.\w(?<!\d)|\w\[|\||\b(int|str|float|bool|dict|Any|None)\b", said
    )
    assert "of ." not in said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("notify.events", "a list of these: failed, completed, resumed, stalled, finished."),
        ("tracker.mode", "one of online, offline, or null."),
        ("cluster.price_per_gpu_hour", "a number, such as 1.5, or null."),
        ("observe.profile", "a mapping of at_step, steps, ranks, tool."),
        ("observe.profile.ranks", "a list of whole numbers."),
        (
            "checkpoint.interval_min",
            "a number, such as 1.5, or null: minutes, a day is 1440, or 2h.",
        ),
        ("env", "a mapping of names to texts."),
    ],
)
def test_values_in_words(key: str, said: str) -> None:
    """As a user writes them."""
    assert takes(key) == f"{key} takes {said}"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("resources.timeout_min=2h", "120"),
        ("resources.timeout_min=24:00:00", "1440"),
        ("resources.timeout_min=1-12:00:00", "2160"),
        ("+resources.timeout_min=30,2h", "30,120"),
        ("resources.mem_gb=64GB", "64"),
        ("resources.mem_gb=512MiB", "0.5"),
        ("resources.mem_gb=1T", "1024"),
        ("checkpoint.interval_min=90s", "1.5"),
        ("runtime.hang_min_s=2m", "120"),
    ],
)
def test_number_with_a_unit_is_that_of_the_key(given: str, read: str) -> None:
    """As people type times and sizes, and copy them from `sbatch --time`."""
    key = given.partition("=")[0]
    assert in_own_unit(given) == f"{key}={read}"


@pytest.mark.parametrize(
    "word",
    [
        "resources.timeout_min=90s",
        "resources.timeout_min=2 x",
        "resources.timeout_min=2G",
        "resources.mem_gb=2h",
        "resources.timeout_min=null",
        "resources.nodes=2h",
        "params.wait_s=2h",
        "wait_min=2h",
        "name=2h",
        "~resources.timeout_min",
    ],
)
def test_other_words_stay_as_they_are(word: str) -> None:
    """What is no number of the key is refused in words later; keys of users are theirs."""
    assert in_own_unit(word) == word
