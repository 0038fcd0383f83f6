"""`${oc.env:NAME}` reads the environment it is given. It must not read the process's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import omegaconf
from omegaconf import OmegaConf
from omegaconf.resolvers import oc

_UNSET = object()

# omegaconf 2.4 moves the registering of resolvers to a name that 2.3 uses for something older.
_REGISTER = "register_new_resolver" if omegaconf.__version__ < "2.4" else "register_resolver"
_register = getattr(OmegaConf, _REGISTER)


@contextmanager
def reading(environ: Mapping[str, str]) -> Iterator[None]:
    """Let `${oc.env:NAME}` and `${oc.env:NAME,default}` read `environ` inside this block."""

    def env(key: str, default: object = _UNSET) -> str | None:
        if key in environ:
            return environ[key]
        if default is _UNSET:
            raise LookupError(f"environment variable {key} is not set")
        return None if default is None else str(default)

    _register("oc.env", env, replace=True)
    try:
        yield
    finally:
        _register("oc.env", oc.env, replace=True)
