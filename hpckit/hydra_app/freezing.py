"""Freezes the composed configuration of a job: the same values in each attempt, on any node.

It must not change types, nor read what only a node or a secret variable says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from inspect import getclosurevars
from pathlib import Path
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.basecontainer import BaseContainer
from omegaconf.resolvers import oc

from hpckit.config.session import register_resolver
from hpckit.patterns import lazy_pattern
from hpckit.planning.secrecy import find_secrets_in_environment, is_secret_variable
from hpckit.runtime.environ import copy_environment

_RESOLVER = lazy_pattern(r"\$\{\s*([^{}:\s]+)\s*:")
_KEY = lazy_pattern(r"\$\{[^{}:]*\}")
_PLAIN = str | int | float | bool | bytes | Path | Enum | Container | None

_OF_THE_NODE = lazy_pattern(
    r"(SLURM|PMIX?|OMPI|GROUP|ROLE|MASTER|TORCHELASTIC|HPCKIT)_\w+|(\w+_)?RANK|(\w+_)?WORLD_SIZE"
    r"|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK|OMP_NUM_THREADS|TMPDIR|HOSTNAME",
    re.ASCII,
)
"""Variables that have their value on the node only."""


def freeze_config(config: DictConfig) -> None:
    """Give values to interpolations that call a resolver, where what is read later would be another value.

    So `${now:…}` and what a resolver of the application draws are the same in each attempt. What a
    resolver makes of other keys follows them also after `main` has changed these: it stays, unless it
    gives another value when it is called again. Types stay. Left as they are: what names other keys,
    what cannot be resolved, as Hydra would only say when it is used, variables that have their value on
    the node, and secrets, which belong into no file.
    """

    def env(key: str, *default: Any) -> Any:
        if _OF_THE_NODE.fullmatch(key) or is_secret_variable(key, copy_environment().get(key, "")):
            raise LookupError
        return oc.env(key, *default)

    register_resolver("oc.env", env, replace=True)
    try:
        # What reads no keys comes first: others may read it.
        for container, key, text in sorted(_list_calls(config), key=lambda place: _reads_keys(place[2])):
            with suppress(Exception):
                call = partial(container.__getitem__, key)
                value = call()
                if not _can_stay(config, text, value, call) and not holds_secret(str(key), value):
                    with flag_override(container, ["readonly", "struct"], [False, False]):
                        container[key] = value
    finally:
        register_resolver("oc.env", oc.env, replace=True)
    # It is pickled with the configuration, and may have secrets.
    OmegaConf.set_cache(config, defaultdict(dict, now=OmegaConf.get_cache(config)["now"]))


def holds_secret(key: str, value: Any) -> bool:
    """Whether a value looks like a secret, by its key or itself, or contains one of the environment's."""
    return is_secret_variable(key, str(value), find_secrets_in_environment(copy_environment()))


def _list_calls(container: DictConfig | ListConfig) -> Iterator[tuple[Any, Any, str]]:
    """Yield the texts that call a resolver, each with its container and key."""
    content: Any = container._value()  # noqa: SLF001  # values are read without resolving
    for key, node in content.items() if isinstance(content, dict) else enumerate(content):
        text = node._value()  # noqa: SLF001  # also of a container that is an interpolation
        if isinstance(text, str) and _RESOLVER.search(text):
            yield container, key, text
        elif isinstance(node, DictConfig | ListConfig) and isinstance(text, dict | list):
            yield from _list_calls(node)


def _reads_keys(text: str) -> bool:
    """Whether an interpolation names other keys, or calls a resolver that is given the configuration."""
    resolvers = filter(None, map(BaseContainer._resolvers.get, _RESOLVER.findall(text)))  # noqa: SLF001
    # OmegaConf notes what it passes to one: `pass_root`, as to its own `oc.select`.
    noted = [item for resolver in resolvers for item in getclosurevars(resolver).nonlocals.items()]
    return _KEY.search(text) is not None or any(given and name[:5] == "pass_" for name, given in noted)


def _can_stay(config: DictConfig, text: str, value: Any, call: Callable[[], Any]) -> bool:
    """Whether an interpolation gives the same value when it is called again, as a function of keys does."""
    if isinstance(value, str) and "${" in value:  # was escaped: is a text
        return True
    if "now" in _RESOLVER.findall(text) or (isinstance(value, _PLAIN) and not _reads_keys(text)):
        return False
    cache = OmegaConf.get_cache(config)
    OmegaConf.clear_cache(config)
    try:
        again = call()
        return type(again) is type(value) and bool(again == value)
    finally:
        config._metadata.resolver_cache = cache  # noqa: SLF001  # set_cache would copy what may not be copied
