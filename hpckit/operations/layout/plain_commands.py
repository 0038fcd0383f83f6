"""Warns of commands that will not follow the layout of their run: nothing in them asks hpckit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpckit.model.command import command_words, script_of
from hpckit.model.finding import Finding, warning
from hpckit.model.plan import LaunchPlan
from hpckit.planning.layout import layout_of


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
        try:
            text = (working_dir / script).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if "hpckit" not in text:
            yield warning(
                "parallel",
                script,
                f"the layout is {layout}, and {script} does not mention hpckit: each rank would "
                "train the whole model",
                "in the script: run = hpckit.attach(), and run.parallelize(…); or leave parallel "
                "out, for a script that lays its model out itself",
            )
