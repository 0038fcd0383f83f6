"""Warns of commands that read nothing of hpckit's, where it counts: a layout, values of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hpckit.model.command import command_words, script_of
from hpckit.model.finding import Finding, warning
from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.planning.layout import layout_of
from hpckit.record.store import open_plain
from hpckit.values import field_names

_HPCKITS = frozenset(field_names(LaunchConfig)) - {"params", "seed"}
"""Sections that hpckit reads itself: runs that differ in them differ."""

_MOST_READ = 10_000_000


def warn_of_plain_commands(plan: LaunchPlan, working_dir: Path) -> Iterator[Finding]:
    """Yield a warning for a layout, or values of a sweep, that a Python file of a command ignores.

    It does not mention hpckit, by which it could read them; values reach it if its words, variables
    or resources differ. `working_dir` is where the runs start. Other programs, and files that are
    not there, are left alone, as nothing is known of them.
    """
    ignores = cache(lambda script: _reads_nothing(working_dir / script))
    alike: dict[str, RunSpec] = {}
    warned: set[str] = set()
    for run in plan.checked_runs:
        settings = run.settings
        words = () if settings.command is None else command_words(settings.command)
        script = (script_of(words) if words else None) or ""
        if not script.endswith(".py") or not ignores(script):
            continue
        layout = layout_of(settings)
        if not layout.is_data_parallel and script not in warned:
            warned.add(script)
            yield warning(
                "parallel",
                script,
                f"the layout is {layout}, and {script} does not mention hpckit: each rank would "
                "train the whole model",
                "in the script: run = hpckit.attach(), and run.parallelize(…); or leave parallel "
                "out, for a script that lays its model out itself",
            )
        first = alike.setdefault(repr((words, settings.env, settings.resources)), run)
        pairs = zip(first.overrides, run.overrides, strict=False)
        keys = [old.partition("=")[0].lstrip("+") for old, new in pairs if old != new]
        keys = [key for key in keys if key.partition(".")[0] not in _HPCKITS]
        if keys and "" not in warned:
            warned.add("")  # once is enough
            yield warning(
                "command",
                script,
                f"runs {first.index} and {run.index} differ in {', '.join(keys)}, and start the "
                f"same command; {script} does not mention hpckit: unless a module of it reads the "
                "configuration, these runs are the same",
                f"hand {keys[0]} on, for example --{keys[0].rpartition('.')[2]} '${{{keys[0]}}}'",
            )


def _reads_nothing(script: Path) -> bool:
    """Return whether a file is there and does not mention hpckit, nor its variables."""
    try:
        with open_plain(script) as file:
            return b"hpckit" not in file.read(_MOST_READ).lower()
    except OSError:
        return False
