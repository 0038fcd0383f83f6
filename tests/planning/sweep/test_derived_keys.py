"""What follows a searched key: copies, texts, and what has to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.model.search import DerivedKey
from hpckit.planning.sweep.derived_keys import Probe, check_configs_equal, find_derived_keys


def _probe(key: str, before: Any, after: Any, **config: Any) -> Probe:
    return Probe(key=key, before=before, after=after, config=config)


def test_text_with_a_value_in_another_is_taken_apart_rightly() -> None:
    """A long value that holds a short one is found first."""
    base = {"a": "7", "b": "77", "text": "77-7"}
    probes = [
        _probe("a", "7", "x", a="x", b="77", text="77-x"),
        _probe("b", "77", "y", a="7", b="y", text="y-7"),
    ]
    assert find_derived_keys(base, probes) == (DerivedKey(path=("text",), pieces=("", "b", "-", "a", "")),)


def test_copy_inside_a_list_is_found() -> None:
    """Only the element follows, not the list."""
    base = {"a": 1, "list": [0, 1, {"b": 1}]}
    probe = _probe("a", 1, 2, a=2, list=[0, 2, {"b": 2}])
    assert find_derived_keys(base, [probe]) == (
        DerivedKey(path=("list", "1"), copies="a"),
        DerivedKey(path=("list", "2", "b"), copies="a"),
    )


def test_what_is_computed_is_refused_by_its_name() -> None:
    """A number twice as large is no copy, and neither is a key that comes and goes."""
    with pytest.raises(ConfigError, match=r"m\.twice is computed from a"):
        find_derived_keys({"a": 1, "m": {"twice": 2}}, [_probe("a", 1, 2, a=2, m={"twice": 4})])
    with pytest.raises(ConfigError, match="extra is computed from a"):
        find_derived_keys({"a": 1}, [_probe("a", 1, 2, a=2, extra=1)])


def test_check_tells_apart_what_only_looks_alike() -> None:
    """1 and true are not the same configuration."""
    with pytest.raises(ConfigError, match="x is computed from"):
        check_configs_equal({"x": 1}, {"x": True})
    check_configs_equal({"x": [1, {"y": None}]}, {"x": [1, {"y": None}]})
