"""Reads what a primary configuration says of itself, before anything is composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from hpckit.config.names import nearest
from hpckit.config.request import PRIMARY, ComposeRequest
from hpckit.config.schema import SCHEMA_NAME

_FOR_COMMANDS = "hpckit_command"


def primary_of(request: ComposeRequest, folders: Sequence[Path]) -> str:
    """Return the primary configuration; for a command not config.yaml if another program's."""
    foreign = request.config_name is None and request.command and not is_ours(folders, PRIMARY)
    return _FOR_COMMANDS if foreign else request.config_name or PRIMARY


def is_ours(folders: Sequence[Path], name: str) -> bool:
    """Return whether a configuration builds on hpckit's, by its text alone.

    Also if it nearly names hpckit's, or is in no file: what is wrong is told when composing.
    """
    listed = list(listed_names(folders, name)) if find_file(folders, name) else ["hpckit"]
    return any(one in ("hpckit", SCHEMA_NAME) or nearest(one, ["hpckit"]) for one in listed)


def listed_names(folders: Sequence[Path], name: str, *above: str) -> Iterator[str]:
    """Yield the names in a configuration's defaults list, and in those of the files named there.

    A choice from a group is named by the group.
    """
    file = find_file(folders, name)
    if file is None or name in above:
        return
    try:
        held = yaml.safe_load(file.read_bytes()) or {}
    except (OSError, ValueError, yaml.YAMLError):
        held = None
    # What is no mapping is told when composing.
    defaults = held.get("defaults") if isinstance(held, dict) else "hpckit"
    for entry in defaults if isinstance(defaults, list) else [defaults]:
        for key, option in entry.items() if isinstance(entry, dict) else [(entry, "")]:
            chosen = (str(key).split() or [""])[-1].partition("@")[0].removeprefix("/")
            yield chosen
            yield from listed_names(folders, f"{chosen}/{option}".rstrip("/"), *above, name)


def find_file(folders: Sequence[Path], name: str) -> Path | None:
    """Return the file of a configuration, by its path in the folders; None if there is none."""
    files = (folder / f"{name.removesuffix('.yaml')}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)
