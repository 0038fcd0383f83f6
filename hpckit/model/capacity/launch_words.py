"""How a planned layout is launched with hpckit, and what of it hpckit cannot run. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWords:
    """The overrides of a setup; `limits` are why hpckit does not run it, empty if it does.

    `own` is what the user's code has to do, as no key of hpckit does it.
    """

    overrides: tuple[str, ...]
    limits: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
