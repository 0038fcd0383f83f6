"""Composes what runs continue with: the only part of `resume` that needs Hydra and Jinja2."""

from __future__ import annotations

from pathlib import Path

from hpckit.config.compose import compose_sections
from hpckit.context import Context
from hpckit.model.launch import LaunchConfig
from hpckit.operations.layout.new_settings import SettingsOrder
from hpckit.record.launches import Launch, load_settings


def settings_order(launch: Launch, words: tuple[str, ...], context: Context) -> SettingsOrder:
    """Return the order for these words, with the function that applies them to a run's settings.

    Files of groups are read from the frozen code. The function raises ConfigError, and so does
    this one if the words mean nothing, also where no run is left that they would be for.
    """
    known: dict[str, LaunchConfig] = {}

    def change(present: LaunchConfig) -> LaunchConfig:
        sections = repr((present.parallel, present.resources))
        if sections not in known:
            cwd = Path(launch.code.working_dir)
            known[sections] = compose_sections(words, present, environ=context.environ, cwd=cwd)
        return known[sections]

    change(load_settings(launch, 0)[0])
    return SettingsOrder(words=words, change=change)
