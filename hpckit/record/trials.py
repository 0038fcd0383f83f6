"""Reads and writes an adaptive sweep's files: the space of the launch, the trial of each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpckit.model.plain import from_plain, to_plain
from hpckit.model.search import Search, Trial
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import make_private_folder, read_json, write_json

VERSION = 1


def write_search_space(paths: LaunchPaths, search: Search) -> None:
    """Freeze the space of a launch; raises OSError."""
    make_private_folder(paths.search)
    write_json(paths.space, {"v": VERSION, **to_plain(search)})


def read_search_space(paths: LaunchPaths) -> Search:
    """Return the frozen space of a launch; raises OSError, TypeError or ValueError."""
    return from_plain(Search, read_json(paths.space))


def write_trial(path: Path, trial: Trial) -> None:
    """Record the values that a run got; raises OSError."""
    write_json(path, {"v": VERSION, **to_plain(trial)})


def read_trial(path: Path) -> Trial | None:
    """Return the values that a run got, None before it asked; raises OSError, ValueError."""
    try:
        return from_plain(Trial, read_json(path))
    except FileNotFoundError:
        return None


def apply_trial_to_config(paths: LaunchPaths, index: int, frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration with the values it got; as frozen before it has asked.

    Raises OSError, TypeError or ValueError.
    """
    trial = read_trial(paths.run(index).trial)
    if trial is None:
        return dict(frozen)
    return read_search_space(paths).apply_values_to_config(frozen, trial.values)


def add_trial_overrides(paths: LaunchPaths, index: int, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """Return a run's overrides, with those of the values it got if it has asked."""
    try:
        trial = read_trial(paths.run(index).trial)
    except (OSError, ValueError, TypeError):
        trial = None
    return frozen if trial is None else (*frozen, *trial.overrides)
