"""Promises of what is told of keys in a user's files that look like hpckit's own."""

from __future__ import annotations

import pytest

from hpckit.config.slips import find_misspelt_root_keys


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("resorces", "resources"),
        ("recovry", "recovery"),
        ("timeout_min", "resources.timeout_min"),
        ("mem_gb", "resources.mem_gb"),
    ],
)
def test_slip_in_a_file_is_told_with_what_was_meant(key: str, meant: str) -> None:
    """Nobody would ever read it, and the run would go on without."""
    assert list(find_misspelt_root_keys({"name": "a", key: 1}, ())) == [(key, meant)]


@pytest.mark.parametrize("key", ["lr", "nodes", "account", "speed", "model", "epochs", "data"])
def test_key_of_the_users_own_is_none(key: str) -> None:
    """A file may hold whatever its code reads."""
    assert not list(find_misspelt_root_keys({"name": "a", "resources": {}, key: 1}, ()))


def test_key_that_a_word_forced_is_none() -> None:
    """Whoever writes ++ means it."""
    assert not list(find_misspelt_root_keys({"resorces": {"nodes": 3}}, ("++resorces.nodes=3", "seed=1")))
