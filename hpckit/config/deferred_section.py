"""Imports Hydra without its own section, which is made when a composition needs it.

Making it takes Hydra 35 ms, an eighth of a launch, and hpckit composes without it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from omegaconf import OmegaConf


def _import_hydra() -> None:
    make = OmegaConf.structured

    def make_others(node: Any, **named: Any) -> Any:
        return OmegaConf.create() if type(node).__module__ == "hydra.conf" else make(node, **named)

    OmegaConf.structured = make_others  # type: ignore[method-assign, assignment]
    try:
        import hydra.conf  # noqa: F401, PLC0415
    finally:
        OmegaConf.structured = make  # type: ignore[method-assign]


if _DEFERRED := "hydra" not in sys.modules:
    _import_hydra()


@cache
def complete_hydra() -> None:
    """Give Hydra its own section: call this before anything else than hpckit composes."""
    from hydra.conf import HydraConf  # noqa: PLC0415
    from hydra.core.config_store import ConfigStore  # noqa: PLC0415

    if _DEFERRED:
        ConfigStore.instance().store("config", HydraConf(), group="hydra", provider="hydra")
