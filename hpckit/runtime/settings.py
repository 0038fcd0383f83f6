"""The resolved configuration as the user's code sees it. It must not resolve or change anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Settings(Mapping[str, Any]):
    """A read-only mapping whose keys are attributes too: `config.params.lr`, `config["seed"]`.

    `dict(config)` and `**config` work; nested mappings are Settings, lists stay lists.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key; raises KeyError."""
        value = self._values[key]
        return Settings(value) if isinstance(value, Mapping) else value

    def __getattr__(self, key: str) -> Any:
        """Return the value of a key; raises AttributeError that lists the keys there are."""
        try:
            return self[key]
        except KeyError:
            known = ", ".join(map(str, self._values))
            raise AttributeError(f"the configuration has no {key!r} here; it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({self._values!r})"
