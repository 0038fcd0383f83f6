"""Keeps `???` where a file sets it.

OmegaConf does not merge a missing value over an existing one, so the schema's own default would
override a file's `partition: ???` (or `command: ???`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from omegaconf import DictConfig, OmegaConf

from hpckit.config.names import leaves
from hpckit.config.schema import SCHEMA_NAME
from hpckit.model.launch import MISSING


class ComposingLoader(ConfigLoaderImpl):
    """Composes as Hydra does.

    `declared_missing` are the keys that the files of the latest composition finally set to `???`.
    Hydra keeps no list of these files; to have it made again would be a third of a composition.
    """

    declared_missing: frozenset[str] = frozenset()

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        # Before Hydra merges the files: it may put their nodes into the result.
        self.declared_missing = _declared_missing(defaults, repo)
        return super()._compose_config_from_defaults_list(defaults, repo)


def _declared_missing(
    defaults: Sequence[ResultDefault], files: IConfigRepository
) -> frozenset[str]:
    """Return the keys that these of the files finally set to `???`."""
    missing: set[str] = set()
    for default in defaults:
        path = str(default.config_path)
        if path == SCHEMA_NAME or path.startswith("hydra/"):
            continue
        for key, value in leaves(_values(files, path), default.package or ""):
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


def _values(files: IConfigRepository, path: str) -> Any:
    loaded = files.load_config(path)
    return {} if loaded is None else OmegaConf.to_container(loaded.config)
