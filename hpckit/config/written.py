"""Finds numbers that YAML 1.1 reads otherwise than they stand in a file, as no override is read.

`timeout_min: 1:30:00` is 5400 there (base 60), `seed: 010` is 8, and a module `2024.10` is 2024.1.
In hpckit's own keys the text counts; a user's own keep the value that every Hydra program gets.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import Container, OmegaConf
from omegaconf._utils import get_yaml_loader

from hpckit.config.request import shipped_folder
from hpckit.config.types import reads_text

_MAY_DIFFER = re.compile(r"\d[:_.eExXbB]|[+.]\d|\b0\d")
"""A file without any of this needs no second look, which would cost a millisecond or more."""

_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Base 8 or 60; nobody writes `0x10` by mistake."""


class _Text(str):
    """The text of a number that prints otherwise."""

    __slots__ = ()


def with_texts(config: Container, package: str, source: str, name: str) -> Container:
    """Return a configuration with the texts of such numbers of hpckit's, as a copy if there are.

    It is that of the file `name` in the folder or Python package `source`, as Hydra calls it.
    """
    kind, _, place = source.partition("://")
    folder = Path(place) if kind == "file" else resources.files(place) if kind == "pkg" else None
    if folder in (None, shipped_folder()):
        return config
    text = (folder / f"{name.removesuffix('.yaml')}.yaml").read_text(encoding="utf-8")
    found = list(_found(_parsed(text), package)) if _MAY_DIFFER.search(text) else []
    changed = copy.deepcopy(config) if found else config
    for path, value in found:
        node: Any = changed if not package else OmegaConf.select(changed, package)
        for part in path[:-1]:
            node = node._get_node(part)  # noqa: SLF001
        node[path[-1]] = value
    return changed


def _found(held: Any, key: str, *path: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place of each such number in a file, and its text."""
    if isinstance(held, dict | list):
        for name, value in held.items() if isinstance(held, dict) else enumerate(held):
            yield from _found(value, f"{key}.{name}".lstrip("."), *path, name)
    elif isinstance(held, _Text):
        as_text = reads_text(key)
        if as_text or (as_text is False and _OTHER_BASE.fullmatch(held)):
            yield path, str(held)


@cache
def _parsed(text: str) -> Any:
    """Parse as Hydra does, but for numbers that are not printed as they are written."""
    return yaml.load(text, Loader=_loader())  # noqa: S506  # a safe one


@cache
def _loader() -> Any:
    loader: Any = get_yaml_loader()

    def as_written(self: Any, node: yaml.ScalarNode) -> Any:
        kind = node.tag.rpartition(":")[2]
        number = getattr(self, f"construct_yaml_{kind}")(node)
        return number if str(number) == node.value else _Text(node.value)

    for kind in ("int", "float"):
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", as_written)
    return loader
