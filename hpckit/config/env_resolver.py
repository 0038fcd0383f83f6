"""`${oc.env:NAME}` reads the environment it is given. It must not read the process's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import cast

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

_UNSET = object()


def registering(home: type) -> Callable[..., None]:
    """Return what registers a resolver, of OmegaConf as it is installed.

    2.4 moves it to `register_resolver`, a name that 2.3 has for something older, which cannot
    replace a resolver.
    """
    newer = getattr(home, "register_resolver", None)
    if newer is not None and "replace" in signature(newer).parameters:
        return cast("Callable[..., None]", newer)
    return cast("Callable[..., None]", home.register_new_resolver)  # type: ignore[attr-defined]


_register = registering(OmegaConf)


@contextmanager
def reading(environ: Mapping[str, str]) -> Iterator[None]:
    """Let `${oc.env:NAME}` and `${oc.env:NAME,default}` read `environ` inside this block."""

    def env(key: str, default: object = _UNSET) -> str | None:
        # An empty variable of our own counts as unset, for launching as for looking.
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
