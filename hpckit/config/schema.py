"""hpckit's frozen dataclasses as Hydra's schema. It has no values of its own.

The root is a plain mapping, so that a user's own keys can be next to ours; our keys are typed
nodes. A node made from a frozen dataclass is read-only, and Hydra refuses to compose into it
(ReadonlyConfigError, hydra-core 1.3 and 1.4), so the read-only flag is removed here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, FloatNode, IntegerNode, OmegaConf, ValueNode

from hpckit.config.types import OPEN, in_unit_of
from hpckit.model.launch import LaunchConfig
from hpckit.values import field_names, is_dataclass

SCHEMA_NAME = "hpckit_schema"


_NO_COPIES = {"no_deepcopy_set_nodes": True}
"""OmegaConf copies a node that it is given, and the node's own nodes with it, on every level."""


@cache
def register_schema() -> None:
    """Register the schema with Hydra under `SCHEMA_NAME`, once per process."""
    # Not by `store`: it makes and copies the whole schema once more.
    node = ConfigNode(SCHEMA_NAME, _schema(), group=None, package=None, provider="hpckit")
    ConfigStore.instance().repo[f"{SCHEMA_NAME}.yaml"] = node


def typed_sections() -> dict[str, type[Any]]:
    """Return the top-level keys that are dataclasses themselves, with their types."""
    defaults = LaunchConfig()
    kinds = {name: type(getattr(defaults, name)) for name in field_names(LaunchConfig)}
    return {name: kind for name, kind in kinds.items() if is_dataclass(kind)}


def _schema() -> DictConfig:
    typed = OmegaConf.structured(LaunchConfig, flags=_NO_COPIES)
    _prepare(typed)
    for name in (*OPEN, "params"):  # the loader closes `params` again if files have some
        OmegaConf.set_struct(OmegaConf.select(typed, name), value=False)
    root = OmegaConf.create({}, flags=_NO_COPIES)
    for name in typed:
        root._set_item_impl(name, typed._get_node(name))  # noqa: SLF001
    root._set_flag(list(_NO_COPIES), [None])  # noqa: SLF001
    return root


class _WithUnit(ValueNode):
    """A number that is also taken as a text with a unit, wherever the text comes from.

    A file, an override, an item of a sweep, an interpolation: OmegaConf asks the node each time.
    """

    def _validate_and_convert_impl(self, value: Any) -> Any:
        if isinstance(value, str):
            value = in_unit_of(str(self._key()), value, whole=isinstance(self, _Whole))
        return super()._validate_and_convert_impl(value)  # type: ignore[safe-super]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._deepcopy_impl(copied := type(self)(), memo)  # type: ignore[call-arg]
        return copied


class _Whole(_WithUnit, IntegerNode):
    pass


class _Decimal(_WithUnit, FloatNode):
    pass


def _prepare(node: DictConfig) -> None:
    """Let files set the keys of a section, and its numbers take units."""
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)  # noqa: SLF001
        if isinstance(child, DictConfig):
            _prepare(child)
        elif isinstance(child, IntegerNode | FloatNode):
            kind = _Whole if isinstance(child, IntegerNode) else _Decimal
            optional = child._is_optional()  # noqa: SLF001
            node._set_item_impl(key, kind(child._value(), key=key, is_optional=optional))  # noqa: SLF001
