"""Promises of config.failures: what is found in the causes of an error, whatever they look like."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError, iterate_error_causes


def test_circle_of_causes_ends() -> None:
    """An error among its own causes, as one that is raised again has, is told once."""
    first, second, third = ValueError("1"), KeyError("2"), TypeError("3")
    first.__cause__, second.__context__, third.__cause__ = second, third, second
    assert list(iterate_error_causes(first)) == [first, second, third]
    first.__cause__ = first
    assert list(iterate_error_causes(first)) == [first]
    assert list(iterate_error_causes(None)) == []


def test_refusal_while_the_same_refusal_is_handled_ends(request_for: Callable[..., ComposeRequest]) -> None:
    """A caller may compose once more in its own handler of a refusal, and is refused again."""
    words = ("experiment=digits", "+name=1")
    with pytest.raises(ConfigError) as first:
        compose_sweep_points(request_for(*words))
    try:
        raise first.value
    except ConfigError:
        for _ in range(3):
            with pytest.raises(ConfigError, match="name"):
                compose_sweep_points(request_for(*words))
