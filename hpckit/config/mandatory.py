"""Keeps `???` where a file says it. It must not decide what is mandatory.

OmegaConf does not merge a missing value over a given one, so that a file saying `partition: ???`
(or `command: ???`) would be overruled by the schema's own default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import ResultDefault
from omegaconf import DictConfig, OmegaConf

from hpckit.config.schema import SCHEMA_NAME

_MISSING = "???"


def declared_missing(loader: ConfigLoader, defaults: Sequence[ResultDefault]) -> frozenset[str]:
    """Return the keys whose last word in these files is `???`."""
    missing: set[str] = set()
    for default in defaults:
        path = str(default.config_path)
        if path == SCHEMA_NAME or path.startswith("hydra/"):
            continue
        for key, value in _leaves(_file(loader, path), default.package or ""):
            (missing.add if value == _MISSING else missing.discard)(key)
    return frozenset(missing)


def restore_missing(config: DictConfig, missing: frozenset[str], overrides: Sequence[str]) -> None:
    """Put `???` back at these keys, unless an override sets the key or a mapping around it."""
    for key in missing:
        if not any(_sets(word, key) for word in overrides):
            OmegaConf.update(config, key, _MISSING)


def _sets(word: str, key: str) -> bool:
    name, _, value = word.lstrip("+~").partition("=")
    return name == key or (key.startswith(f"{name}.") and value.startswith("{"))


def _file(loader: ConfigLoader, path: str) -> Any:
    for source in loader.get_sources():
        if source.is_config(path):
            config = source.load_config(path).config
            return OmegaConf.to_container(config) if OmegaConf.is_config(config) else {}
    return {}


def _leaves(values: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(values, dict):
        yield path, values
        return
    for key, value in values.items():
        if key != "defaults" or path:
            yield from _leaves(value, f"{path}.{key}".lstrip("."))
