"""The resolved, read-only configuration as the user's code sees it."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping, ValuesView
from typing import Any, NoReturn


class MissingKeyError(AttributeError):
    """The configuration has no such key, here or at any time of this run."""


class Config(dict[str, Any]):
    """A read-only dict whose keys are also attributes: `config.params.lr`, `config["seed"]`.

    Every mapping inside it is a Config, too, also in lists. `dict(config)` and `**config` are plain
    at all levels, which OmegaConf needs: it refuses every subclass of dict.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key; raises KeyError."""
        return _wrap_in_config(super().__getitem__(key))

    def __getattr__(self, key: str) -> Any:
        """Return the value of a key; raises MissingKeyError, which lists the existing keys."""
        try:
            return self[key]
        except KeyError:
            known = ", ".join(map(str, self))
            raise MissingKeyError(f"the configuration has no {key!r} here; it has {known}") from None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return _wrap_in_config(super().get(key, default))

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # dict's own view is final
        """Return a view of the values."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # likewise
        """Return a view of keys and values."""
        return ItemsView(self)

    def __repr__(self) -> str:
        return f"Config({super().__repr__()})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        """Copy and pickle through the plain values; dict's own way would set items."""
        return Config, (dict(self),)

    def _refuse_change(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the configuration is read-only; change a copy: copy.deepcopy(dict(config))")

    __setitem__ = __delitem__ = __setattr__ = __delattr__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change


def _wrap_in_config(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Config(value)
    return [_wrap_in_config(item) for item in value] if isinstance(value, list) else value
