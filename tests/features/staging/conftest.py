"""Nodes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from staged_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Return what makes nodes, by name and source."""
    made: list[Node] = []

    def make(name: str, *given: Any, **settings: Any) -> Node:
        made.append(Node(tmp_path / name, *given, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
