"""Warns of commands that read nothing of hpckit's, where it counts: a layout, values of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpckit.model.command import command_words, script_of
from hpckit.model.finding import Finding, warning
from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.planning.layout import layout_of
from hpckit.values import field_names

_HPCKITS = frozenset(field_names(LaunchConfig)) - {"params", "seed"}
"""Sections that hpckit reads itself: runs that differ in them differ."""


def warn_of_plain_commands(plan: LaunchPlan, working_dir: Path) -> Iterator[Finding]:
    """Yield a warning for each command with a layout whose Python file does not name hpckit.

    `working_dir` is where the runs start. Other programs, and files that are not there, are left
    alone, as nothing is known of them.
    """
    seen: set[str] = set()
    for run in plan.checked_runs:
        settings = run.settings
        if settings.command is None or (layout := layout_of(settings)).is_data_parallel:
            continue
        script = script_of(command_words(settings.command)) or ""
        if script in seen or not script.endswith(".py"):
            continue
        seen.add(script)
        if _reads_nothing(working_dir / script):
            yield warning(
                "parallel",
                script,
                f"the layout is {layout}, and {script} does not mention hpckit: each rank would "
                "train the whole model",
                "in the script: run = hpckit.attach(), and run.parallelize(…); or leave parallel "
                "out, for a script that lays its model out itself",
            )


def warn_of_unread_values(plan: LaunchPlan, working_dir: Path) -> Iterator[Finding]:
    """Yield a warning if runs of a sweep differ in values that their command does not get.

    Their words, variables and resources are the same, and the Python file does not mention hpckit,
    by which it could read the configuration.
    """
    seen: dict[str, RunSpec] = {}
    read: set[str] = set()
    for run in plan.checked_runs:
        settings = run.settings
        if settings.command is None:
            continue
        words = command_words(settings.command)
        script = script_of(words) or ""
        first = seen.setdefault(repr((words, settings.env, settings.resources)), run)
        differing = dict(zip(first.overrides, run.overrides, strict=False))
        keys = [
            one.partition("=")[0].lstrip("+") for one, other in differing.items() if one != other
        ]
        keys = [one for one in keys if one.partition(".")[0] not in _HPCKITS]
        if not keys or script in read or not script.endswith(".py"):
            continue
        read.add(script)
        if not _reads_nothing(working_dir / script):
            continue
        yield warning(
            "command",
            script,
            f"runs {first.index} and {run.index} differ in {', '.join(keys)}, and start the same "
            f"command; {script} does not mention hpckit: unless a module of it reads the "
            "configuration, these runs are the same",
            f"hand {keys[0]} on, for example --{keys[0].rpartition('.')[2]} '${{{keys[0]}}}'",
        )
        return


def _reads_nothing(script: Path) -> bool:
    """Return whether a file is there and does not mention hpckit, nor its variables."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "hpckit" not in text.lower()
