"""Explains what is wrong in a configuration file, or which file is missing.

Finds the file and line in the user's own configuration that Hydra's messages do not name.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException
from hydra.plugins.config_source import ConfigLoadError
from yaml import MarkedYAMLError

from hpckit.config.failures import first_line, inner, reason, unknown_key
from hpckit.config.names import nearest, question
from hpckit.config.primary import document, find_file, listed_names
from hpckit.config.request import shipped_folder
from hpckit.config.schema import known_in, takes, typed_sections
from hpckit.config.session import Session
from hpckit.errors import ConfigError, causes
from hpckit.patterns import lazy_pattern

_IN_FILE = lazy_pattern(r"In '?([^':]+)'?: ?")
_PACKAGE = "# @package _global_"
_MARKS = frozenset({"entry_point", "command", "resources", "stages"})
"""hpckit's root keys that a user is unlikely to nest below a key of their own."""

_CHOSEN_TWICE = lazy_pattern(r"Multiple values for ([^ ]+)\. To override")
_NOT_OVERRIDDEN = lazy_pattern(r"(?:Could not override|No earlier Group Default for) '([^']+)'")
"""The wording in hydra-core 1.3 and 1.4."""

_STORED = (
    " If your code stores it in Hydra's ConfigStore, name that module in the primary configuration "
    "or on the command line: imports=[myapp.config]."
)

_NEEDLESS = {
    ("tracker", "tensorboard"): "TensorBoard needs none: write below $HPCKIT_RUN_DIR, or make its "
    "files of what run.log wrote: hpckit export tensorboard",
}
"""Options that users look for, and need not have."""


def explain_unreadable_file(error: Exception, session: Session) -> ConfigError | None:
    """Return an error with the place of invalid or unreadable text; None for other causes."""
    for link in causes(error):
        if isinstance(link, MarkedYAMLError) and link.problem_mark is not None:
            mark = link.problem_mark
            place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
            return ConfigError(
                f"{place}: not valid YAML: {link.problem}.",
                hint="Fix that line or the one above it.",
            )
        if isinstance(link, UnicodeDecodeError):
            file = _undecodable(session.folders, link.object) or "A configuration file"
            return ConfigError(
                f"{file} is not text in UTF-8: {link}.",
                hint="Save it in UTF-8, for example: iconv -f latin1 -t utf-8 OLD > NEW",
            )
        if isinstance(link, ConfigLoadError) and (unread := _misnamed(session.folders)):
            return ConfigError(
                f"{unread} is not read: Hydra reads files that end in .yaml.",
                hint=_rename(unread),
            )
        if isinstance(link, PermissionError):
            return ConfigError(
                f"A configuration file cannot be read: {link}.", hint="It has to be readable."
            )
    return None


def without_package(
    config: Mapping[Any, Any], session: Session, overrides: Sequence[str]
) -> ConfigError | None:
    """Return an error if an experiment's keys ended up below `experiment.`; else None."""
    below = config.get("experiment")
    if not isinstance(below, Mapping) or not below:
        return None
    idle = config.get("entry_point") is None and config.get("command") is None
    if not idle and _MARKS.isdisjoint(below):
        return None
    chosen = [
        default for default in session.defaults(overrides) if default.startswith("experiment/")
    ]
    file = _path(session, chosen[-1]) if chosen else "The experiment"
    keys = ", ".join(f"experiment.{key}" for key in list(below)[:3])
    return ConfigError(
        f"{file}: its keys came out below `experiment.` ({keys}), where hpckit does not look.",
        hint=f"Put this line first in it: {_PACKAGE}",
    )


def not_ours(session: Session) -> ConfigError:
    """Return the error for a primary configuration that does not include hpckit's."""
    listed = listed_names(session.folders, session.config_name)
    group = "" if "experiment" in listed else ", experiment: null"
    return ConfigError(
        f"{_path(session, session.config_name)} does not build on hpckit's configuration.",
        hint="Write a second one, such as hpc.yaml, and choose it: --config-name hpc, or once "
        "export HPCKIT_CONFIG_NAME=hpc. For commands it needs no more than "
        "`defaults: [hpckit, _self_]`; for functions that read this configuration "
        f"`defaults: [hpckit, {session.config_name}, _self_{group}]`. If no other "
        "program reads this one, put `- hpckit` first in its defaults list.",
    )


def explain_missing_file(
    error: MissingConfigException, session: Session, overrides: Sequence[str]
) -> ConfigError:
    """Return an error that says which file was missing, what requested it, and what exists."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    inside = _IN_FILE.match(first_line(error))
    if not group and inside is None:
        return _missing_primary(session, option)
    place = _who_asked(group, option, session, overrides)
    place = place or (_path(session, inside[1]) if inside else session.config_name)
    groups = session.groups()
    if group not in groups:
        return _missing_group(group or option, option, place, groups)
    other = _misnamed(session.folders, f"{group}/{option}")
    if other is not None:
        return ConfigError(
            f"{place}: {group} has no option {option!r}, as Hydra reads files that end in .yaml.",
            hint=_rename(other),
        )
    if (group, option) in _NEEDLESS:
        said = f"{place}: {group} has no option {option!r}."
        return ConfigError(said, hint=_NEEDLESS[group, option])
    nowhere = "" if _user_folders(session.folders) else ", and there is no ./conf here"
    near = nearest(option, groups[group])
    return ConfigError(
        f"{place}: {group} has no option {option!r}.{question(near)}",
        hint=f"Options of {group}: {', '.join(groups[group])}. One of your own is a file "
        f"conf/{group}/{option}.yaml{nowhere}.{'' if near else _STORED}",
    )


def _who_asked(group: str, option: str, session: Session, overrides: Sequence[str]) -> str | None:
    """Return the override, or else the line of a user's file, that selects the missing option."""
    asked = [word for word in overrides if word.lstrip("+").startswith((f"{group}=", f"{group}@"))]
    exact = [word for word in asked if word.partition("=")[2] == option]
    if exact or asked:
        return (exact or asked)[-1]
    found = _choosing(session.folders, _likely(session, overrides), group, option)
    return None if found is None else found[0]


def no_group(place: str, said: str, name: str, groups: Mapping[str, Sequence[str]]) -> ConfigError:
    """Return the error for a group that there is not; `said` is what it is called in words."""
    near = nearest(name, groups)
    return ConfigError(
        f"{place}: there is no {said}.{question(near)}",
        hint=f"Groups: {', '.join(groups)}.{'' if near else _STORED}",
    )


def _missing_group(
    name: str, option: str, place: str, groups: Mapping[str, Sequence[str]]
) -> ConfigError:
    last = name.rpartition("/")[2]
    if last != name and last in groups:
        return ConfigError(
            f"{place}: there is no {name}: without a slash, a group belongs next to the file.",
            hint=f"Write - override /{last}: {option}",
        )
    return no_group(place, name, name, groups)


def _rename(file: Path) -> str:
    return f"Rename {file} to {file.with_suffix('.yaml').name}"


def content(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError:
    """Return the error for the content of a file; Hydra's message begins with the file's name."""
    inside = _IN_FILE.match(first_line(error))
    place = _path(session, inside[1] if inside else session.config_name)
    misplaced = _misplaced(error, session, overrides) or _no_mapping(place, session)
    if misplaced is not None:
        return misplaced
    cause = inner(error)
    if cause is None:
        return ConfigError(
            f"{place}: {_without_file(error)}.",
            hint="Correct the defaults list of that file. If a group appears more than once, "
            "another file of the list chooses it, too: take one entry out.",
        )
    key = str(cause.full_key or "")
    if not key:
        return ConfigError(f"{place}: it is not a mapping of keys.", hint="Write `key: value`.")
    section, _, name = key.rpartition(".")
    known = known_in(section)
    if known and unknown_key(cause):
        return ConfigError(
            f"{place}: {key} is not a key of hpckit.{question(nearest(name, known))}",
            hint=f"Known in {section}: {', '.join(known)}.",
        )
    return ConfigError(f"{place}: {key}: {reason(error)}.", hint=takes(key))


def _likely(session: Session, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the configurations that the overrides select, and the primary one."""
    chosen = (word.lstrip("+").partition("=") for word in overrides)
    return (*(f"{group}/{option}" for group, _, option in chosen), session.config_name)


def _misplaced(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError | None:
    """Return an error if a defaults list selects from an already selected group; else None."""
    text = str(error)
    match = _CHOSEN_TWICE.search(text) or _NOT_OVERRIDDEN.search(text)
    if match is None:
        return None
    group = match[1].partition("@")[0].rpartition("/")[2]
    found = _choosing(session.folders, _likely(session, overrides), group)
    if found is None or not session.has_group(group):
        return None
    return ConfigError(
        f"{found[0]}: {group} is a group of the root, and chosen there already.",
        hint=f"Write - override /{group}: {found[1]}",
    )


def _no_mapping(place: str, session: Session) -> ConfigError | None:
    """Return an error for the part of a file that has to be a mapping and is not; else None."""
    held = document(Path(place))
    if held is not None and not isinstance(held, dict):
        return ConfigError(
            f"{place}: it is a {type(held).__name__}, and has to be a mapping of keys.",
            hint="Write `key: value`; a list of files to include stands below `defaults:`.",
        )
    of_root = Path(place).parent in session.folders or "@package _global_" in _text(Path(place))
    for name in typed_sections() if of_root else ():
        value = (held or {}).get(name, {})
        if value is not None and not isinstance(value, dict):
            return ConfigError(
                f"{place}: {name} is {value!r}; that is a section of hpckit's own, with "
                f"{', '.join(known_in(name))}.",
                hint=f"Give a key of your own another name, such as my_{name}.",
            )
    return None


def _missing_primary(session: Session, name: str) -> ConfigError:
    known = [option for option in session.options("") if not option.startswith("hpckit")]
    folders = ", ".join(str(folder) for folder in session.folders)
    return ConfigError(
        f"There is no configuration {name!r} in {folders}.{question(nearest(name, known))}",
        hint=f"Known: {', '.join(known)} (--config-name, $HPCKIT_CONFIG_NAME).",
    )


def _path(session: Session, config: str) -> str:
    """Return the file of a configuration, by its path in the search path."""
    return str(find_file(session.folders, config) or f"{config.removesuffix('.yaml')}.yaml")


def _without_file(error: Exception) -> str:
    """Return Hydra's message as one line, without the file name at its beginning."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return _IN_FILE.sub("", " ".join(filter(None, lines)), count=1).removesuffix(".")


def _user_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the configuration folders that are the user's."""
    return tuple(folder for folder in folders if folder != shipped_folder())


def _misnamed(folders: Sequence[Path], option: str | None = None) -> Path | None:
    """Return a file ending in .yml, which Hydra does not read, and 1.4 does not even list.

    `option` is the option it should provide, such as `experiment/mine`; None for any.
    """
    pattern = "**/*.yml" if option is None else f"{glob.escape(option)}.yml"
    found = (file for folder in _user_folders(folders) for file in sorted(folder.glob(pattern)))
    return next(found, None)


def _undecodable(folders: Sequence[Path], part: bytes) -> Path | None:
    """Return the user's file that is not UTF-8 text and has these bytes, which were read of it.

    Others that are not UTF-8 either may not have been read.
    """
    for file in _files(folders):
        try:
            _text(file)
        except UnicodeDecodeError as error:
            if part in error.object:
                return file
    return None


def _choosing(
    folders: Sequence[Path], likely: Sequence[str], group: str, option: str | None = None
) -> tuple[str, str] | None:
    """Return the place in the user's files that first selects from a group, and what it selects.

    `likely` are files to search first; `option` is what the line has to select, None for any.
    """
    wanted = r"[^\s'\"#]+" if option is None else re.escape(option)
    last = re.escape(group.rpartition("/")[2])
    choice = rf"\s*-\s*(?:override\s+)?/?{last}\s*:\s*['\"]?({wanted})['\"]?\s*(?:#.*)?\Z"
    endings = tuple(f"/{name.removesuffix('.yaml')}.yaml" for name in likely)
    for file in sorted(_files(folders), key=lambda one: not str(one).endswith(endings)):
        try:
            lines = _text(file).splitlines()
        except UnicodeDecodeError:
            continue
        for number, text in enumerate(lines, start=1):
            if match := re.match(choice, text):
                return f"{file}, line {number}", match[1]
    return None


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in _user_folders(folders):
        yield from sorted(folder.rglob("*.yaml"))


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError:
        return ""
