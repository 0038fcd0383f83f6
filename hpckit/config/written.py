"""Finds values that are read otherwise than they are written, in a file or in an override.

In YAML 1.1 `timeout_min: 1:30:00` is 5400 (base 60), `seed: 010` is 8, and `V: on` is True; there
and in Hydra's overrides a module `2024.10` is 2024.1. In hpckit's own keys the text counts; a
user's own keep the value that every Hydra program gets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import Override
from omegaconf import Container, OmegaConf

from hpckit.patterns import lazy_pattern

try:
    from omegaconf._yaml import get_yaml_loader  # type: ignore[import-not-found]  # omegaconf 2.4
except ImportError:
    from omegaconf._utils import get_yaml_loader

from hpckit.config.request import shipped_conf_folder
from hpckit.config.schema import key_takes_text_not_number
from hpckit.values import replace

_MAY_DIFFER = lazy_pattern(r"(?im)\d[:_.ex]|[+.]\d|-0|\b(0[b\d]|inf|nan)|\b(yes|no|on|off)\s*([],}#]|$)")
"""What has nothing of this needs no second look, which would cost a millisecond or more."""

_OTHER_BASE = lazy_pattern(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Base 8 or 60; nobody writes `0x10` by mistake."""


class _Text(str):
    """The text of a number that prints otherwise, or of a boolean that is a word in overrides."""

    __slots__ = ()


def keep_config_values_as_written(config: Container, package: str, source: str, name: str) -> Container:
    """Return a configuration with the texts of such values of hpckit's, as a copy if there are.

    It is that of the file `name` in the folder or Python package `source`, as Hydra calls it.
    """
    kind, _, place = source.partition("://")
    folder = Path(place) if kind == "file" else resources.files(place) if kind == "pkg" else None
    if folder in (None, shipped_conf_folder()):
        return config
    text = (folder / f"{name.removesuffix('.yaml')}.yaml").read_text(encoding="utf-8")
    found = (
        list(_find_values_to_keep_as_text(_parse_yaml_keeping_texts(text), package))
        if _MAY_DIFFER.search(text)
        else []
    )
    changed = copy.deepcopy(config) if found else config
    for path, value in found:
        _set_at_path(changed if not package else OmegaConf.select(changed, package), path, value)
    return changed


def keep_override_values_as_written(override: Override) -> Override:
    """Return an override with the texts of such numbers of hpckit's; not a whole sweep."""
    key, value, line = override.key_or_group, override.value(), str(override.input_line)
    one = isinstance(value, int | float) and key_takes_text_not_number(key)
    if not (one or isinstance(value, list | dict)) or not _MAY_DIFFER.search(line):
        return override
    grammar: Any = overrides_parser  # for its ANTLR, too, which is another one in hydra-core 1.4
    lexer = grammar.OverrideLexer(grammar.InputStream(line))
    tree = grammar.OverrideParser(grammar.CommonTokenStream(lexer)).override()
    typed = _Typed(grammar.create_functions()).visit(tree)
    held = [value]  # its containers are made by each call of `value()`
    for path, text in _find_values_to_keep_as_text(typed._value, key):  # noqa: SLF001
        _set_at_path(held, (0, *path), text)
    return replace(override, _value=held[0])


class _Typed(HydraOverrideVisitor):
    """Reads as Hydra does, but for such numbers. What functions are given stays a number."""

    def visitPrimitive(self, ctx: Any) -> Any:  # noqa: N802
        return _keep_text_if_changed(super().visitPrimitive(ctx), ctx.getText().strip())

    def visitFunction(self, ctx: Any) -> Any:  # noqa: N802
        return HydraOverrideVisitor(self.functions).visitFunction(ctx)


def _set_at_path(node: Any, path: tuple[Any, ...], value: str) -> None:
    for part in path[:-1]:
        node = node._get_node(part) if isinstance(node, Container) else node[part]  # noqa: SLF001
    node[path[-1]] = value


def _find_values_to_keep_as_text(held: Any, key: str, *path: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place of each such value, and its text. The keys of mappings stay as read."""
    if isinstance(held, dict | list):
        for name, value in held.items() if isinstance(held, dict) else enumerate(held):
            if not isinstance(name, _Text):
                yield from _find_values_to_keep_as_text(value, f"{key}.{name}".lstrip("."), *path, name)
    elif isinstance(held, _Text):
        as_text = key_takes_text_not_number(key)
        if as_text or (as_text is False and _OTHER_BASE.fullmatch(held)):
            yield path, str(held)


def _keep_text_if_changed(value: Any, text: str) -> Any:
    """Return the text of a value that is read otherwise than it is written, else the value."""
    same = text.lower() in ("true", "false") if isinstance(value, bool) else str(value) == text
    return value if same or not isinstance(value, int | float) else _Text(text)


@cache
def _parse_yaml_keeping_texts(text: str) -> Any:
    return yaml.load(text, Loader=_build_yaml_loader())  # noqa: S506  # a safe one


@cache
def _build_yaml_loader() -> Any:
    loader: Any = get_yaml_loader()

    def construct(self: Any, node: yaml.ScalarNode) -> Any:
        kind = node.tag.rpartition(":")[2]
        return _keep_text_if_changed(getattr(self, f"construct_yaml_{kind}")(node), node.value)

    for kind in ("int", "float", "bool"):
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", construct)
    return loader
