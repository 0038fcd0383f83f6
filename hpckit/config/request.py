"""The user's request for a composition: data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PRIMARY = "config"
"""The configuration that is composed if no other is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeRequest:
    """Overrides in Hydra's grammar, and where to look for configuration.

    `environ` determines the user's configuration folder (`HPCKIT_CONFIG_DIR`), whether Slurm is
    installed (`PATH`), and the values of `${oc.env:...}`; relative folders start at `cwd`. `tell`
    is called with the number of points composed so far and the total. `command` are the words after
    `--`, as the shell passed them; None without a command.
    """

    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    config_dir: Path | None = None
    config_name: str = PRIMARY
    multirun: bool = False
    environ: Mapping[str, str]
    cwd: Path
    tell: Callable[[int, int], None] | None = None
