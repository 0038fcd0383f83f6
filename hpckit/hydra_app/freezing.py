"""Freezes the composed configuration of a job: the same values in each attempt, on any node.

It must not change types, nor read what only a node or a secret variable says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, flag_override
from omegaconf.resolvers import oc

from hpckit.config.session import register_resolver
from hpckit.patterns import lazy_pattern
from hpckit.planning.secrecy import is_secret_variable
from hpckit.runtime.environ import copy_environment

_CALLS = lazy_pattern(r"\$\{[^{}]*:")
"""An interpolation that calls a resolver, such as `${now:%H}`; one that names a key is kept."""

_OF_THE_NODE = lazy_pattern(
    r"(SLURM|PMIX?|OMPI|GROUP|ROLE|MASTER|TORCHELASTIC|HPCKIT)_\w+|(\w+_)?RANK|(\w+_)?WORLD_SIZE"
    r"|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK|OMP_NUM_THREADS|TMPDIR|HOSTNAME",
    re.ASCII,
)
"""Variables that have their value on the node only."""


def freeze_config(config: DictConfig) -> None:
    """Give values to interpolations that call a resolver: what is read later would be another value.

    So `${now:…}` and what a resolver of the application draws are the same in each attempt. Types
    stay. Left as they are: what names other keys, what cannot be resolved, as Hydra would only say
    when it is used, variables that have their value on the node, and secrets, which belong into no file.
    """
    with _env_resolver_hides_what_belongs_to_nodes():
        _freeze_container(config)


def _freeze_container(container: DictConfig | ListConfig) -> None:
    if container._is_none() or container._is_missing() or container._is_interpolation():  # noqa: SLF001
        return
    keys = range(len(container)) if isinstance(container, ListConfig) else list(container)
    for key in keys:
        node: Any = container._get_node(key)  # noqa: SLF001  # values are read without resolving
        raw = node._value()  # noqa: SLF001
        if isinstance(raw, str) and _CALLS.search(raw):
            with suppress(Exception):
                value = node._dereference_node()  # noqa: SLF001
                value = value if isinstance(value, Container) else value._value()  # noqa: SLF001
                if not (isinstance(value, str) and "${" in value):  # was escaped: is a text
                    with flag_override(container, ["readonly", "struct"], [False, False]):
                        container[key] = value
        elif isinstance(node, DictConfig | ListConfig):
            _freeze_container(node)


@contextmanager
def _env_resolver_hides_what_belongs_to_nodes() -> Iterator[None]:
    environ = copy_environment()

    def env(key: str, *default: Any) -> Any:
        if _OF_THE_NODE.fullmatch(key) or is_secret_variable(key, environ.get(key, "")):
            raise LookupError
        return oc.env(key, *default)

    register_resolver("oc.env", env, replace=True)
    try:
        yield
    finally:
        register_resolver("oc.env", oc.env, replace=True)
