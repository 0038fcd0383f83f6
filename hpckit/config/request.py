"""The user's request for a composition: data only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_CHOICE = re.compile(r"\+{0,2}(experiment|entry_point|command)=")
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


def with_something_to_run(request: ComposeRequest) -> ComposeRequest:
    """Return the request, with a command if its words choose nothing to run.

    Then no experiment need be complete to learn what the cluster is.
    """
    chosen = request.command or any(_CHOICE.match(word) for word in request.overrides)
    return request if chosen else replace(request, command=("true",))
