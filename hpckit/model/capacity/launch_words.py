"""How a planned layout is launched with hpckit, and what of it hpckit cannot run. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWords:
    """The overrides of a setup; `limits` are why hpckit does not run it, empty if it does.

    `own` is what the user's code has to do, as no key of hpckit does it. `unplaced` is why the
    overrides do not say nodes and GPUs, empty if they do. `complete` is whether the overrides say
    what is run, too. `options` are those of `hpckit plan` that choose this setup.
    """

    overrides: tuple[str, ...]
    limits: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    unplaced: str = ""
    complete: bool = False
    options: tuple[str, ...] = ()
