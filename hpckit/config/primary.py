"""Reads what a primary configuration says of itself, before anything is composed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from hpckit.config.failures import first_error_line
from hpckit.config.names import suggest_nearest_names
from hpckit.config.request import PRIMARY, ComposeRequest
from hpckit.config.schema import SCHEMA_NAME, list_section_keys
from hpckit.errors import ConfigError
from hpckit.model.counted import format_short_list

_FOR_COMMANDS = "hpckit_command"
_SHOWN = 3


def choose_primary_config(request: ComposeRequest, folders: Sequence[Path]) -> str:
    """Return the primary configuration; for a command not config.yaml if another program's."""
    foreign = request.config_name is None and request.command and not builds_on_hpckit(folders, PRIMARY)
    if foreign:
        _refuse_unread_settings(folders)
    return _FOR_COMMANDS if foreign else request.config_name or PRIMARY


def _refuse_unread_settings(folders: Sequence[Path]) -> None:
    """Raise ConfigError if a file that will not be read sets keys that only hpckit has."""
    sections = _read_config_mapping(folders, PRIMARY)
    unread = [
        f"{section}.{key}"
        for section in ("cluster", "resources", "recovery")
        if isinstance(sections.get(section), dict)
        for key in sections[section]
        if key in list_section_keys(section)
    ]
    if unread:
        raise ConfigError(
            f"{find_config_file(folders, PRIMARY)} sets {format_short_list(unread, _SHOWN)}, and "
            "has no `hpckit` in its defaults list: it would not be read.",
            hint="Put `defaults: [hpckit, _self_]` first in it; if it is another program's, write "
            "one of your own, such as hpc.yaml with that line, and choose it: --config-name hpc",
        )


def builds_on_hpckit(folders: Sequence[Path], name: str) -> bool:
    """Return whether a configuration builds on hpckit's, by its text alone.

    Also if it nearly names hpckit's, or is in no file: composing then explains what is wrong.
    """
    listed = list(iterate_defaults_list(folders, name)) if find_config_file(folders, name) else ["hpckit"]
    return any(one in ("hpckit", SCHEMA_NAME) or suggest_nearest_names(one, ["hpckit"]) for one in listed)


def import_configured_modules(request: ComposeRequest, folders: Sequence[Path], primary: str) -> bool:
    """Import `imports` of the primary configuration's file and of the command line; return if any.

    They are found from the working directory. Raises ConfigError if one cannot be imported.
    """
    words = (word.lstrip("+").partition("=") for word in request.overrides)
    given = [_read_config_mapping(folders, primary).get("imports")]
    given += [_parse_yaml_once(value) for key, _, value in words if key == "imports"]
    wanted = [name for names in given if isinstance(names, list) for name in names]
    sys.path.insert(0, str(request.cwd))
    try:
        for name in wanted:
            import_module(str(name))
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"imports: {name} cannot be imported: {type(error).__name__}: {first_error_line(error)}.",
            hint="Name a module as Python imports it from this folder, with what it needs "
            "installed where hpckit is: imports=[myapp.config]",
        ) from error
    finally:
        sys.path.remove(str(request.cwd))
    return bool(wanted)


def read_yaml_file(file: Path) -> Any:
    """Return the parsed YAML of a file; None if it cannot be read or parsed."""
    try:
        return _parse_yaml_once(file.read_bytes())
    except OSError:
        return None


@cache
def _parse_yaml_once(text: str | bytes) -> Any:
    """Parse a text once: a launch looks at its primary configuration several times."""
    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return None


def iterate_defaults_list(folders: Sequence[Path], name: str, *above: str) -> Iterator[str]:
    """Yield the names in a configuration's defaults list, and in those of the files named there.

    A choice from a group is named by the group.
    """
    file = find_config_file(folders, name)
    if file is None or name in above:
        return
    held = read_yaml_file(file)
    if isinstance(held, dict):
        defaults = held.get("defaults")
    else:  # composing explains what is not a mapping
        defaults = "hpckit" if held is not None or b"hpckit" in file.read_bytes() else None
    for entry in defaults if isinstance(defaults, list) else [defaults]:
        for key, option in entry.items() if isinstance(entry, dict) else [(entry, "")]:
            chosen = (str(key).split() or [""])[-1].partition("@")[0].removeprefix("/")
            yield chosen
            yield from iterate_defaults_list(folders, f"{chosen}/{option}".rstrip("/"), *above, name)


def list_keys_overridden_by_hpckit(folders: Sequence[Path], name: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of files that are before `hpckit` in a defaults list, and these files."""
    defaults = _read_config_mapping(folders, name).get("defaults")
    if isinstance(defaults, list) and "hpckit" in defaults:
        for entry in defaults[: defaults.index("hpckit")]:
            yield from ((str(key), str(entry)) for key in _read_config_mapping(folders, str(entry)))


def _read_config_mapping(folders: Sequence[Path], name: str) -> Mapping[Any, Any]:
    """Return what the file of a configuration holds; nothing if there is none, or no mapping."""
    file = find_config_file(folders, name)
    held = None if file is None else read_yaml_file(file)
    return held if isinstance(held, dict) else {}


def find_config_file(folders: Sequence[Path], name: str) -> Path | None:
    """Return the file of a configuration, by its path in the folders; None if there is none."""
    files = (folder / f"{name.removesuffix('.yaml')}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)
