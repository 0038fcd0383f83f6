"""Two tiers of tests: what every change runs, and with `--thorough` all other combinations, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

thorough = pytest.mark.thorough


def in_tiers(cases: Iterable[str], usual: Collection[str]) -> list[Any]:
    """Return all cases as values of a parameter, marked unless they are usual."""
    names = list(cases)
    assert not set(usual) - set(names), set(usual) - set(names)
    return [name if name in usual else pytest.param(name, marks=thorough) for name in names]


def chosen(
    request: pytest.FixtureRequest, cases: dict[str, Any], needed: Collection[str] = ()
) -> dict[str, Any]:
    """Return the cases that tests of this module run with: by their parameter `name`, or `needed`.

    So a world does not work through cases that nobody asks for.
    """
    here = [one for one in request.session.items if one.path == request.path]
    calls = [getattr(one, "callspec", None) for one in here]
    names = {call.params.get("name") for call in calls if call is not None} | {*needed}
    return {name: case for name, case in cases.items() if name in names}
