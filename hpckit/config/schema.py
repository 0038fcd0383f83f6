"""hpckit's own keys: their schema for Hydra, and in words what values they take.

The schema is made of frozen dataclasses, and has no values of its own. Its root is a plain mapping,
so that a user's own keys can be next to ours; our keys are typed nodes. A node made from a frozen
dataclass is read-only, and Hydra refuses to compose into it (ReadonlyConfigError, hydra-core 1.3
and 1.4), so the read-only flag is removed here.
"""

from __future__ import annotations

import re
from enum import EnumType
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, FloatNode, IntegerNode, ListConfig, OmegaConf, StringNode, ValueNode

from hpckit.model.launch import LaunchConfig
from hpckit.model.moment import UNIT_SECONDS, parse_slurm_duration
from hpckit.model.parallel.settings import SCHEDULES, SIZE_WORDS
from hpckit.patterns import lazy_pattern
from hpckit.values import field_names, is_dataclass

SCHEMA_NAME = "hpckit_schema"
_NO_COPIES = {"no_deepcopy_set_nodes": True}
"""OmegaConf copies a node that it is given, and the node's own nodes with it, on every level."""

_UNITS = {
    "_min": ": minutes, a day is 1440, or 2h",
    "_s": ": seconds",
    "_hours": ": hours",
    "_gb": ": gigabytes, or 512MB",
    "_mb": ": megabytes",
}
"""The unit of a number, by the end of its key."""

_TIMES = UNIT_SECONDS | {"sec": 1, "m": 60}
_SIZES = {"m": 2**20, "g": 2**30, "t": 2**40}
_UNIT_OF = {"_min": (_TIMES, 60), "_s": (_TIMES, 1), "_gb": (_SIZES, 2**30), "_mb": (_SIZES, 2**20)}
_WITH_UNIT = lazy_pattern(r"(\d+(?:\.\d+)?)([a-z]+?)i?b?", re.IGNORECASE)

_ONE = {
    str: "a text",
    int: "a whole number, such as 2",
    float: "a number, such as 1.5",
    bool: "true or false",
}
_MANY = {str: "texts", int: "whole numbers", Any: "values"}

OPEN = ("env", "cluster.env", "container.env", "resources.additional_parameters")
"""Sections whose keys are the user's; each takes text."""

_NAME_LISTS = ("resources.partition", "resources.qos", "cluster.partition", "cluster.qos")
"""Texts of which a configuration may make a list: Slurm takes several names, with commas."""

_FORMS = {
    **dict.fromkeys(("resources.account", "cluster.account"), "one account, as Slurm does, or null"),
    "cluster.gpu_types": "a mapping of partitions to GPUs by type, such as {gpu: {a100: 4}}",
    **dict.fromkeys(_NAME_LISTS, "a name or a list of names, such as [a,b], or null"),
    "command": "a program and its words, as a list or as one text",
    "stages": "a mapping of names to stages",
    "sweep.zip": "groups of keys that advance together, such as [[lr,batch]]",
    "parallel.fallback": "a list of layouts, such as [{replicate:1,shard:rest}]",
    "parallel.schedule": f"one of {', '.join(SCHEDULES)}",
    **{
        f"parallel.{axis}": " or ".join(["a whole number of 1 or more", *sorted(words)])
        for axis, words in SIZE_WORDS.items()
    },
}
"""What a key takes, if its type says too little."""


def list_section_keys(section: str) -> tuple[str, ...]:
    """Return the keys of one of hpckit's sections; empty for others."""
    kind = _find_key_type(section)
    return field_names(kind) if is_dataclass(kind) else ()


def describe_allowed_values(key: str) -> str:
    """Return what a key of hpckit takes, as a sentence; unknown for a user's own keys."""
    hint = _find_key_type(key)
    if hint is None:
        return "Remove it and use --cfg to see the configuration."
    unit = next((words for ending, words in _UNITS.items() if key.endswith(ending)), "")
    return f"{key} takes {_FORMS.get(key) or _describe_type(hint, key)}{unit}."


def key_takes_one_text(key: str) -> bool:
    """Return whether a key of hpckit takes one text, in which a comma has no special meaning."""
    if key.startswith(tuple(f"{name}." for name in OPEN)):
        return True
    return _find_key_type(key) in (str, str | None) or key == "command"


def is_scalar_key(key: str) -> bool:
    """Return whether a key of hpckit takes one value that is not a list."""
    hint = _find_key_type(key)
    return hint is not None and not any(
        kind in (Any, list, dict) or get_origin(kind) in (list, dict) for kind in (hint, *get_args(hint))
    )


def is_decimal_key(key: str) -> bool:
    """Return whether a key of hpckit takes one number that need not be whole."""
    hint = _find_key_type(key)
    return hint is not None and float in (hint, *get_args(hint))


@cache
def key_takes_text_not_number(key: str) -> bool | None:
    """Return whether a key of hpckit takes a text; None if neither texts nor numbers are taken.

    Items of lists and mappings are keys, too: `cluster.modules.0`.
    """
    kinds = {_find_key_type(key), *get_args(_find_key_type(key))}
    if {int, float} & kinds:
        return False
    return True if key_takes_one_text(key) or key.startswith("command.") else None


def convert_to_key_unit(name: str, text: str, *, whole: bool) -> str:
    """Return a text with a unit as a number of its key's: of `2h` for `timeout_min` `120`.

    Other text is returned as it is.
    """
    units, own = next((one for end, one in _UNIT_OF.items() if name.endswith(end)), ({}, 1))
    found = _WITH_UNIT.fullmatch(text.strip())
    clock = parse_slurm_duration(text) if units is _TIMES else None
    amount = clock.total_seconds() if clock else 0.0
    if found is not None:
        amount = float(found[1]) * units.get(found[2].lower(), 0)
    if not amount:
        return text
    number = amount / own
    return text if whole and number % 1 else f"{number:.15g}"


def _find_key_type(key: str) -> Any:
    """Return the type of a key, or of an item of a list or mapping; None for a user's own."""
    kind: Any = LaunchConfig
    for part in key.split("."):
        if is_dataclass(kind):
            kind = get_type_hints(kind).get(part)
        else:
            inner = get_args(kind)[-1] if get_origin(kind) in (list, dict) else Any
            kind = None if inner is Any else inner
    return kind


def _describe_type(hint: Any, key: str) -> str:
    inner = get_args(hint)
    if type(None) in inner:
        (kind,) = (type_ for type_ in inner if type_ is not type(None))
        return f"{_describe_type(kind, key)}, or null"
    if get_origin(hint) is list:
        return f"a list of {_describe_item_type(inner[0])}"
    if get_origin(hint) is dict:
        return f"a mapping of names to {_describe_item_type(inner[1])}"
    if isinstance(hint, EnumType):
        return f"one of {', '.join(hint.__members__)}"
    if is_dataclass(hint):
        return f"a mapping of {', '.join(list_section_keys(key))}"
    return _ONE[hint]


def _describe_item_type(kind: Any) -> str:
    if isinstance(kind, EnumType):
        return f"these: {', '.join(kind.__members__)}"
    return _MANY[kind]


def register_schema_with_hydra() -> None:
    """Register the schema with Hydra under `SCHEMA_NAME`, unless its present store has it."""
    repo = ConfigStore.instance().repo
    if f"{SCHEMA_NAME}.yaml" not in repo:
        # Not by `store`: it makes and copies the whole schema once more.
        repo[f"{SCHEMA_NAME}.yaml"] = ConfigNode(
            SCHEMA_NAME, _build_schema(), group=None, package=None, provider="hpckit"
        )


def list_typed_sections() -> dict[str, type[Any]]:
    """Return the top-level keys that are dataclasses themselves, with their types."""
    defaults = LaunchConfig()
    kinds = {name: type(getattr(defaults, name)) for name in field_names(LaunchConfig)}
    return {name: kind for name, kind in kinds.items() if is_dataclass(kind)}


@cache
def _build_schema() -> DictConfig:
    typed = OmegaConf.structured(LaunchConfig, flags=_NO_COPIES)
    _unlock_and_add_units(typed)
    for section, _, key in (name.partition(".") for name in _NAME_LISTS):
        typed[section]._set_item_impl(key, _Names(None, key=key))  # noqa: SLF001
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
            value = convert_to_key_unit(str(self._key()), value, whole=isinstance(self, _Whole))
        return super()._validate_and_convert_impl(value)  # type: ignore[safe-super]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._deepcopy_impl(copied := type(self)(), memo)  # type: ignore[call-arg]
        return copied


class _Whole(_WithUnit, IntegerNode):
    pass


class _Decimal(_WithUnit, FloatNode):
    pass


class _Names(StringNode):
    """A text that is also taken as a list of names: `[a,b]` is `a,b`."""

    def _validate_and_convert_impl(self, value: Any) -> str:
        names = list(value) if isinstance(value, list | ListConfig) else []
        if names and all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
            value = ",".join(map(str, names))
        return super()._validate_and_convert_impl(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Names:
        self._deepcopy_impl(copied := _Names(), memo)
        return copied


def _unlock_and_add_units(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)  # noqa: SLF001
        if isinstance(child, DictConfig):
            _unlock_and_add_units(child)
        elif isinstance(child, IntegerNode | FloatNode):
            kind = _Whole if isinstance(child, IntegerNode) else _Decimal
            optional = child._is_optional()  # noqa: SLF001
            node._set_item_impl(key, kind(child._value(), key=key, is_optional=optional))  # noqa: SLF001
