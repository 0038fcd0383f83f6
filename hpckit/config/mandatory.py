"""Keeps `???` where a file sets it.

OmegaConf does not merge a missing value over an existing one, so the schema's own default would
override a file's `partition: ???` (or `command: ???`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.default_element import ResultDefault
from omegaconf import DictConfig, OmegaConf

from hpckit.config.names import leaves
from hpckit.config.schema import SCHEMA_NAME
from hpckit.model.launch import MISSING


def declared_missing(folders: Sequence[Path], defaults: Sequence[ResultDefault]) -> frozenset[str]:
    """Return the keys that these files, searched for in `folders`, finally set to `???`."""
    missing: set[str] = set()
    for default in defaults:
        path = str(default.config_path)
        if path == SCHEMA_NAME or path.startswith("hydra/"):
            continue
        for key, value in leaves(_file(folders, path), default.package or ""):
            (missing.add if value == MISSING else missing.discard)(key)
    return frozenset(missing)


def restore_missing(config: DictConfig, missing: frozenset[str], overrides: Sequence[str]) -> None:
    """Put `???` back at these keys, unless an override sets the key or a mapping around it."""
    for key in missing:
        if not any(_sets(word, key) for word in overrides):
            OmegaConf.update(config, key, MISSING)


def _sets(word: str, key: str) -> bool:
    name, _, value = word.lstrip("+~").partition("=")
    return name == key or (key.startswith(f"{name}.") and value.startswith("{"))


def _file(folders: Sequence[Path], path: str) -> Any:
    relative = f"{path.removesuffix('.yaml')}.yaml"
    found = (folder / relative for folder in folders if (folder / relative).is_file())
    file = next(found, None)
    return {} if file is None else OmegaConf.to_container(OmegaConf.load(file))
