"""Promises about `${oc.env:...}` on the releases of omegaconf."""

from __future__ import annotations

from hpckit.config.session import find_resolver_registration


class _Older:
    """What 2.3 offers: the name of 2.4 is there, for something else."""

    @staticmethod
    def register_resolver(name: str, resolver: object) -> None:
        """Take a resolver of the kind before 2.1."""

    @staticmethod
    def register_new_resolver(name: str, resolver: object, *, replace: bool = False) -> None:
        """Take a resolver."""


class _Newer:
    """What 2.4 and 2.10 offer."""

    @staticmethod
    def register_resolver(name: str, resolver: object, *, replace: bool = False) -> None:
        """Take a resolver."""


def test_env_resolver_is_registered_by_what_is_there() -> None:
    """The choice follows from what omegaconf offers, not from comparing numbers as text."""
    assert find_resolver_registration(_Older) is _Older.register_new_resolver
    assert find_resolver_registration(_Newer) is _Newer.register_resolver
