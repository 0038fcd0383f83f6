"""Makes `${oc.env:NAME}` read a given environment, never the process's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import cast

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

_UNSET = object()


def registering(home: type) -> Callable[..., None]:
    """Return the function that registers a resolver in the installed OmegaConf.

    2.4 moves it to `register_resolver`. 2.3 has an older function with that name, which cannot
    replace a resolver.
    """
    newer = getattr(home, "register_resolver", None)
    if newer is not None and "replace" in signature(newer).parameters:
        return cast("Callable[..., None]", newer)
    return cast("Callable[..., None]", home.register_new_resolver)  # type: ignore[attr-defined]


_register = registering(OmegaConf)


@contextmanager
def reading(environ: Mapping[str, str]) -> Iterator[None]:
    """Make `${oc.env:NAME}` and `${oc.env:NAME,default}` read `environ` inside this block."""

    def env(key: str, default: object = _UNSET) -> str | None:
        # An empty variable of hpckit counts as unset, for launching and for showing.
        if key in environ and (environ[key] or not key.startswith("HPCKIT_")):
            return environ[key]
        if default is _UNSET:
            raise LookupError(f"environment variable {key} is not set")
        return None if default is None else str(default)

    _register("oc.env", env, replace=True)
    try:
        yield
    finally:
        _register("oc.env", oc.env, replace=True)
