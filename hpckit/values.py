"""`dataclass`, `field` and `replace` of the standard library, for classes that cost little to make.

The standard library compiles up to six methods of each class when its module is imported, 0.4 ms a
class: half the time of `hpckit ls`. Here each is compiled when it is first looked up. What
`dataclasses` has to say of a class (`fields`, `asdict`, `is_dataclass`), it says of these too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

_FIELDS = "__hpckit_fields__"
_OPTIONS = "__hpckit_options__"
_DEFAULTS = {"kw_only": False, "frozen": False, "eq": True, "repr": True, "order": False}
_ORDERS = ("__lt__", "__le__", "__gt__", "__ge__")
_UNSET = object()


class _Field:
    """What `field` was told, whether it is given by name, and its type as written."""

    __slots__ = ("by_name", "hint", "told")

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.by_name = False
        self.hint = ""

    def __getattr__(self, name: str) -> Any:
        return self.told.get(name, True)  # init, repr, compare: as by default


class _Unwritten:
    """An attribute of a class that is made when it is first looked up, and then replaces this."""

    def __init__(self, name: str, make: Callable[[Any, str], Any]) -> None:
        self.name, self.make = name, make

    def __get__(self, instance: object, owner: type) -> Any:
        for cls in owner.__mro__:
            if vars(cls).get(self.name) is self:
                setattr(cls, self.name, self.make(cls, self.name))
                break
        if isinstance(instance, type):  # `inspect` of Python 3.13 asks as for a method of the class
            return getattr(instance, self.name).__get__(instance)
        # If nothing was found, another thread has made it since.
        return getattr(owner if instance is None else instance, self.name)


def is_dataclass(kind: Any) -> bool:
    """Return whether a type is a dataclass: one of ours, or the standard library's."""
    return hasattr(kind, _FIELDS) or hasattr(kind, "__dataclass_fields__")


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, or of an instance of it."""
    cls = kind if isinstance(kind, type) else type(kind)
    return tuple(_read_class_fields(cls) if _FIELDS in vars(cls) else kind.__dataclass_fields__)


def _make_field(**told: Any) -> Any:
    return _Field(told)


def _replace_fields(value: Any, /, **changes: Any) -> Any:
    if _FIELDS not in vars(type(value)):  # torch's, or a user's
        return import_module("dataclasses").replace(value, **changes)
    cls: type = type(value)
    before = {name: getattr(value, name) for name in _list_constructor_fields(cls) if name not in changes}
    return cls(**before, **changes)


@cache
def _list_constructor_fields(cls: type) -> tuple[str, ...]:
    return tuple(name for name, one in _read_class_fields(cls).items() if one.init)


def _dataclass(*, slots: bool = False, weakref_slot: bool = False, **options: bool) -> Any:
    options = _DEFAULTS | options
    extra = (() if slots else ("__dict__",)) + (("__weakref__",) if weakref_slot else ())
    return lambda cls: _build_slotted_class(cls, options, extra)


def _build_slotted_class(cls: type, options: Mapping[str, bool], extra: tuple[str, ...]) -> type:
    """Return a class with slots in the place of `cls`, as `dataclasses.dataclass` does."""
    space = dict(vars(cls)) | {"__annotations__": cls.__annotations__}
    known: dict[str, _Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        known |= vars(base).get(_FIELDS, {})
    own = dict(_iterate_own_fields(space, by_name=options["kw_only"]))
    for name in (*own, "__dict__", "__weakref__"):
        space.pop(name, None)
    if space.get("__hash__") is None:  # as Python has it beside an __eq__, or for no reason
        space.pop("__hash__", None)
    space["__slots__"] = (*(name for name in own if name not in known), *extra)
    space |= {"__qualname__": cls.__qualname__, _FIELDS: known | own, _OPTIONS: options}
    return type(cls)(cls.__name__, cls.__bases__, _dataclass_methods(**options) | space)


def _iterate_own_fields(space: Mapping[str, Any], *, by_name: bool) -> Iterator[tuple[str, _Field]]:
    for name, hint in space["__annotations__"].items():
        if "ClassVar" not in str(hint):
            value = space.get(name, _UNSET)
            if not isinstance(value, _Field):
                value = _Field({} if value is _UNSET else {"default": value})
            value.by_name, value.hint = value.told.get("kw_only", by_name), hint
            yield name, value


def _read_class_fields(cls: type) -> dict[str, _Field]:
    fields: dict[str, _Field] = getattr(cls, _FIELDS)
    return fields


def _compile_init(cls: type, name: str) -> Any:
    first, by_name, lines = ["self"], ["*"], []
    names: dict[str, Any] = {"_unset": _UNSET}
    frozen = getattr(cls, _OPTIONS)["frozen"]
    for key, one in _read_class_fields(cls).items():
        argument = value = key
        if "default" in one.told:
            argument, names[f"_{key}"] = f"{key}=_{key}", one.default
        elif "default_factory" in one.told:
            argument, names[f"_{key}"] = f"{key}=_unset", one.default_factory
            value = f"_{key}() if {key} is _unset else {key}"
        if one.init:
            (by_name if one.by_name else first).append(argument)
        elif argument == key:
            continue
        else:
            value = f"_{key}" if "default" in one.told else f"_{key}()"
        names[f"_set_{key}"] = getattr(cls, key).__set__
        lines.append(f"_set_{key}(self, {value})" if frozen else f"self.{key} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = [*first, *(by_name if by_name[1:] else ())]
    return _compile_method(cls, name, arguments, lines or ["pass"], names)


def _compile_equality(cls: type, name: str) -> Any:
    names = [key for key, one in _read_class_fields(cls).items() if one.compare]
    same = f"return {_render_field_tuple(names, 'self')} == {_render_field_tuple(names, 'other')}"
    lines = [f"if other.__class__ is self.__class__: {same}", "return NotImplemented"]
    return _compile_method(cls, name, ["self", "other"], lines)


def _compile_hash(cls: type, name: str) -> Any:
    names = [key for key, one in _read_class_fields(cls).items() if one.told.get("hash", one.compare)]
    return _compile_method(cls, name, ["self"], [f"return hash({_render_field_tuple(names, 'self')})"])


def _render_field_tuple(names: list[str], of: str) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _compile_method(
    cls: type, name: str, arguments: list[str], lines: list[str], names: Mapping[str, Any] = {}
) -> Any:
    space = {"__name__": cls.__module__, **names}
    text = f"def {name}({', '.join(arguments)}):\n " + "\n ".join(lines)
    exec(text, space)  # noqa: S102  # of names in our own source, as the standard library does
    space[name].__qualname__ = f"{cls.__qualname__}.{name}"
    return space[name]


def _borrow_standard_attribute(cls: type, name: str) -> Any:
    """Return an attribute as the standard library makes it; few programs use these."""
    return getattr(_build_stdlib_dataclass_twin(cls, repr=name == "__repr__", order=name in _ORDERS), name)


@cache
def _build_stdlib_dataclass_twin(cls: type, **options: bool) -> type:
    standard = import_module("dataclasses")
    space: dict[str, Any] = {
        key: standard.field(**one.told | {"kw_only": one.by_name})
        for key, one in _read_class_fields(cls).items()
    }
    space["__annotations__"] = {key: one.hint for key, one in _read_class_fields(cls).items()}
    space |= {"__module__": cls.__module__, "__doc__": cls.__doc__ or cls.__name__}
    make = standard.dataclass(init=False, eq=options["order"], **options)
    made: type = make(type(cls.__name__, (), space))
    vars(made)["__dataclass_params__"].frozen = getattr(cls, _OPTIONS)["frozen"]
    return made


def _refuse_assignment(value: Any, name: str, *_: object) -> None:
    error: type[Exception] = import_module("dataclasses").FrozenInstanceError
    raise error(f"cannot assign to field {name!r} of {type(value).__name__}")


def _get_field_values(value: Any) -> list[Any]:
    return [getattr(value, name) for name in _read_class_fields(type(value))]


def _restore_field_values(value: Any, state: list[Any]) -> None:
    for name, one in zip(_read_class_fields(type(value)), state, strict=True):
        object.__setattr__(value, name, one)


@cache
def _dataclass_methods(*, frozen: bool, eq: bool, repr: bool, order: bool, kw_only: bool) -> dict[str, Any]:  # noqa: A002, ARG001  # as the standard library has them
    """Return the attributes that a dataclass gets if its author did not write them, by name."""
    rare = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
    rare += (*(("__repr__",) if repr else ()), *(_ORDERS if order else ()))
    made: dict[str, Any] = dict.fromkeys(rare, _borrow_standard_attribute) | {"__init__": _compile_init}
    made |= {"__eq__": _compile_equality} if eq else {}
    made |= {"__hash__": _compile_hash} if eq and frozen else {}
    methods: dict[str, Any] = {name: _Unwritten(name, make) for name, make in made.items()}
    if frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_assignment}
        return methods | {"__getstate__": _get_field_values, "__setstate__": _restore_field_values}
    return methods | ({"__hash__": None} if eq else {})


if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    dataclass, field, replace = _dataclass, _make_field, _replace_fields

__all__ = ["dataclass", "field", "field_names", "is_dataclass", "replace"]
