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

from hpckit.config.failures import (
    find_omegaconf_error,
    first_error_line,
    is_unknown_key_error,
    most_specific_error_line,
)
from hpckit.config.names import format_did_you_mean, suggest_nearest_names
from hpckit.config.primary import find_config_file, iterate_defaults_list, read_yaml_file
from hpckit.config.request import shipped_conf_folder
from hpckit.config.schema import describe_allowed_values, list_section_keys, list_typed_sections
from hpckit.config.session import Session
from hpckit.errors import ConfigError, iterate_error_causes
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
    ("tracker", "tensorboard"): "TensorBoard needs none: write to $HPCKIT_RUN_DIR, or make its "
    "files from what run.log wrote: hpckit export tensorboard"
}
"""Options that users look for, and need not have."""


def explain_unreadable_file(error: Exception, session: Session) -> ConfigError | None:
    """Return an error with the place of invalid or unreadable text; None for other causes."""
    for link in iterate_error_causes(error):
        if isinstance(link, MarkedYAMLError) and link.problem_mark is not None:
            mark = link.problem_mark
            place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
            return ConfigError(
                f"{place}: not valid YAML: {link.problem}.", hint="Fix that line or the one above it."
            )
        if isinstance(link, UnicodeDecodeError):
            file = _find_undecodable_file(session.folders, link.object) or "A configuration file"
            return ConfigError(
                f"{file} is not text in UTF-8: {link}.",
                hint="Save it in UTF-8, for example: iconv -f latin1 -t utf-8 OLD > NEW",
            )
        if isinstance(link, ConfigLoadError) and (unread := _find_yml_file(session.folders)):
            return ConfigError(
                f"{unread} is not read: Hydra reads files that end in .yaml.",
                hint=_suggest_yaml_rename(unread),
            )
        if isinstance(link, PermissionError):
            return ConfigError(
                f"A configuration file cannot be read: {link}.", hint="Make it readable for you."
            )
    return None


def explain_misplaced_experiment_keys(
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
        default for default in session.list_composed_files(overrides) if default.startswith("experiment/")
    ]
    file = _find_config_path(session, chosen[-1]) if chosen else "The experiment"
    keys = ", ".join(f"experiment.{key}" for key in list(below)[:3])
    return ConfigError(
        f"{file}: its keys are below `experiment.` ({keys}), where hpckit does not read them.",
        hint=f"Make this line the first of the file: {_PACKAGE}",
    )


def explain_config_without_hpckit(session: Session) -> ConfigError:
    """Return the error for a primary configuration that does not include hpckit's."""
    listed = iterate_defaults_list(session.folders, session.config_name)
    group = "" if "experiment" in listed else ", experiment: null"
    return ConfigError(
        f"{_find_config_path(session, session.config_name)} does not build on hpckit's configuration.",
        hint="Write a second one, such as hpc.yaml, and choose it: --config-name hpc, or once "
        "export HPCKIT_CONFIG_NAME=hpc. For commands it needs only "
        "`defaults: [hpckit, _self_]`; for functions that read this configuration "
        f"`defaults: [hpckit, {session.config_name}, _self_{group}]`. If no other "
        "program reads this one, put `- hpckit` first in its defaults list.",
    )


def explain_missing_file(
    error: MissingConfigException, session: Session, overrides: Sequence[str]
) -> ConfigError:
    """Return an error that says which file was missing, what requested it, and what exists."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    inside = _IN_FILE.match(first_error_line(error))
    if not group and inside is None:
        return _explain_missing_primary(session, option)
    place = _find_who_selects_option(group, option, session, overrides)
    place = place or (_find_config_path(session, inside[1]) if inside else session.config_name)
    groups = session.list_option_groups()
    if group not in groups:
        return _explain_missing_group(group or option, option, place, groups)
    other = _find_yml_file(session.folders, f"{group}/{option}")
    if other is not None:
        return ConfigError(
            f"{place}: {group} has no option {option!r}, as Hydra reads files that end in .yaml.",
            hint=_suggest_yaml_rename(other),
        )
    if (group, option) in _NEEDLESS:
        said = f"{place}: {group} has no option {option!r}."
        return ConfigError(said, hint=_NEEDLESS[group, option])
    nowhere = "" if _list_user_conf_folders(session.folders) else ", and there is no ./conf here"
    near = suggest_nearest_names(option, groups[group])
    return ConfigError(
        f"{place}: {group} has no option {option!r}.{format_did_you_mean(near)}",
        hint=f"Options of {group}: {', '.join(groups[group])}. One of your own is a file "
        f"conf/{group}/{option}.yaml{nowhere}.{'' if near else _STORED}",
    )


def _find_who_selects_option(
    group: str, option: str, session: Session, overrides: Sequence[str]
) -> str | None:
    """Return the override, or else the line of a user's file, that selects the missing option."""
    asked = [word for word in overrides if word.lstrip("+").startswith((f"{group}=", f"{group}@"))]
    exact = [word for word in asked if word.partition("=")[2] == option]
    if exact or asked:
        return (exact or asked)[-1]
    found = _find_file_line_selecting_group(
        session.folders, _list_selected_configs(session, overrides), group, option
    )
    return None if found is None else found[0]


def explain_unknown_group(
    place: str, said: str, name: str, groups: Mapping[str, Sequence[str]]
) -> ConfigError:
    """Return the error for a group that does not exist; `said` is what the message calls it."""
    near = suggest_nearest_names(name, groups)
    return ConfigError(
        f"{place}: there is no {said}.{format_did_you_mean(near)}",
        hint=f"Groups: {', '.join(groups)}.{'' if near else _STORED}",
    )


def _explain_missing_group(
    name: str, option: str, place: str, groups: Mapping[str, Sequence[str]]
) -> ConfigError:
    last = name.rpartition("/")[2]
    if last != name and last in groups:
        return ConfigError(
            f"{place}: there is no {name}: without a leading slash, it is relative to the file.",
            hint=f"Write - override /{last}: {option}",
        )
    return explain_unknown_group(place, name, name, groups)


def _suggest_yaml_rename(file: Path) -> str:
    return f"Rename {file} to {file.with_suffix('.yaml').name}"


def explain_invalid_content(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError:
    """Return the error for the content of a file; Hydra's message begins with the file's name."""
    inside = _IN_FILE.match(first_error_line(error))
    place = _find_config_path(session, inside[1] if inside else session.config_name)
    misplaced = _explain_group_selected_twice(error, session, overrides) or _explain_nonmapping(
        place, session
    )
    if misplaced is not None:
        return misplaced
    cause = find_omegaconf_error(error)
    if cause is None:
        return ConfigError(
            f"{place}: {_strip_file_name(error)}.",
            hint="Correct the defaults list of that file. If a group appears more than once, "
            "another file of the list chooses it too: remove one entry.",
        )
    key = str(cause.full_key or "")
    if not key:
        return ConfigError(f"{place}: it is not a mapping of keys.", hint="Write `key: value`.")
    section, _, name = key.rpartition(".")
    known = list_section_keys(section)
    if known and is_unknown_key_error(cause):
        return ConfigError(
            f"{place}: {key} is not a key of "
            f"hpckit.{format_did_you_mean(suggest_nearest_names(name, known))}",
            hint=f"Known in {section}: {', '.join(known)}.",
        )
    return ConfigError(
        f"{place}: {key}: {most_specific_error_line(error)}.", hint=describe_allowed_values(key)
    )


def _list_selected_configs(session: Session, overrides: Sequence[str]) -> tuple[str, ...]:
    chosen = (word.lstrip("+").partition("=") for word in overrides)
    return (*(f"{group}/{option}" for group, _, option in chosen), session.config_name)


def _explain_group_selected_twice(
    error: Exception, session: Session, overrides: Sequence[str]
) -> ConfigError | None:
    """Return an error if a defaults list selects from an already selected group; else None."""
    text = str(error)
    match = _CHOSEN_TWICE.search(text) or _NOT_OVERRIDDEN.search(text)
    if match is None:
        return None
    group = match[1].partition("@")[0].rpartition("/")[2]
    found = _find_file_line_selecting_group(
        session.folders, _list_selected_configs(session, overrides), group
    )
    if found is None or not session.has_group(group):
        return None
    return ConfigError(
        f"{found[0]}: {group} is a top-level group, and is already chosen there.",
        hint=f"Write - override /{group}: {found[1]}",
    )


def _explain_nonmapping(place: str, session: Session) -> ConfigError | None:
    held = read_yaml_file(Path(place))
    if held is not None and not isinstance(held, dict):
        return ConfigError(
            f"{place}: it is a {type(held).__name__}, but must be a mapping of keys.",
            hint="Write `key: value`; put a list of files to include below `defaults:`.",
        )
    of_root = Path(place).parent in session.folders or "@package _global_" in _read_utf8_text(Path(place))
    for name in list_typed_sections() if of_root else ():
        value = (held or {}).get(name, {})
        if value is not None and not isinstance(value, dict):
            return ConfigError(
                f"{place}: {name} is {value!r}, but it is a section of hpckit, with "
                f"{', '.join(list_section_keys(name))}.",
                hint=f"Give a key of your own another name, such as my_{name}.",
            )
    return None


def _explain_missing_primary(session: Session, name: str) -> ConfigError:
    known = [option for option in session.list_group_options("") if not option.startswith("hpckit")]
    folders = ", ".join(str(folder) for folder in session.folders)
    return ConfigError(
        f"There is no configuration {name!r} in "
        f"{folders}.{format_did_you_mean(suggest_nearest_names(name, known))}",
        hint=f"Known: {', '.join(known)} (--config-name, $HPCKIT_CONFIG_NAME).",
    )


def _find_config_path(session: Session, config: str) -> str:
    return str(find_config_file(session.folders, config) or f"{config.removesuffix('.yaml')}.yaml")


def _strip_file_name(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return _IN_FILE.sub("", " ".join(filter(None, lines)), count=1).removesuffix(".")


def _list_user_conf_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(folder for folder in folders if folder != shipped_conf_folder())


def _find_yml_file(folders: Sequence[Path], option: str | None = None) -> Path | None:
    """Return a file ending in .yml, which Hydra does not read, and 1.4 does not even list.

    `option` is the option it should provide, such as `experiment/mine`; None for any.
    """
    pattern = "**/*.yml" if option is None else f"{glob.escape(option)}.yml"
    found = (file for folder in _list_user_conf_folders(folders) for file in sorted(folder.glob(pattern)))
    return next(found, None)


def _find_undecodable_file(folders: Sequence[Path], part: bytes) -> Path | None:
    """Return the user's file that is not UTF-8 text and has these bytes, which were read of it.

    Others that are not UTF-8 either may not have been read.
    """
    for file in _list_user_yaml_files(folders):
        try:
            _read_utf8_text(file)
        except UnicodeDecodeError as error:
            if part in error.object:
                return file
    return None


def _find_file_line_selecting_group(
    folders: Sequence[Path], likely: Sequence[str], group: str, option: str | None = None
) -> tuple[str, str] | None:
    """Return the place in the user's files that first selects from a group, and what it selects.

    `likely` are files to search first; `option` is what the line has to select, None for any.
    """
    wanted = r"[^\s'\"#]+" if option is None else re.escape(option)
    last = re.escape(group.rpartition("/")[2])
    choice = rf"\s*-\s*(?:override\s+)?/?{last}\s*:\s*['\"]?({wanted})['\"]?\s*(?:#.*)?\Z"
    endings = tuple(f"/{name.removesuffix('.yaml')}.yaml" for name in likely)
    for file in sorted(_list_user_yaml_files(folders), key=lambda file: not str(file).endswith(endings)):
        try:
            lines = _read_utf8_text(file).splitlines()
        except UnicodeDecodeError:
            continue
        for number, text in enumerate(lines, start=1):
            if match := re.match(choice, text):
                return f"{file}, line {number}", match[1]
    return None


def _list_user_yaml_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in _list_user_conf_folders(folders):
        yield from sorted(folder.rglob("*.yaml"))


def _read_utf8_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError:
        return ""
