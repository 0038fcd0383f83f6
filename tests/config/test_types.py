"""Promises of config.types: what a key takes is said in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import pytest

from hpckit.config.types import takes
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
        ("checkpoint.interval_min", "a number, such as 1.5, or null: minutes, a day is 1440."),
        ("env", "a mapping of names to texts."),
    ],
)
def test_values_in_words(key: str, said: str) -> None:
    """As a user writes them."""
    assert takes(key) == f"{key} takes {said}"
