"""What a user asks to be composed. It must not compose it, or look at the file system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PRIMARY = "config"
"""The configuration that is composed where no other is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeRequest:
    """Overrides in Hydra's grammar, and where configuration is looked for.

    `environ` says where the user's configuration lies (`HPCKIT_CONFIG_DIR`), whether Slurm is
    here (`PATH`), and what `${oc.env:...}` gives; `cwd` is where relative folders start. `tell`
    hears how many points are composed, of how many. `command` are the words of the command behind
    `--`, as the shell gave them; null without one.
    """

    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    config_dir: Path | None = None
    config_name: str = PRIMARY
    multirun: bool = False
    environ: Mapping[str, str]
    cwd: Path
    tell: Callable[[int, int], None] | None = None
