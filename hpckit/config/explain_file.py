"""What is wrong in a configuration file, or with its being looked for. It must not mend it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import MissingConfigException
from yaml import MarkedYAMLError

from hpckit.config.failures import chain, first_line, inner, reason, unknown_key
from hpckit.config.names import nearest, question
from hpckit.config.session import Session
from hpckit.config.types import known_in, takes
from hpckit.errors import ConfigError

_IN_FILE = re.compile(r"In '?([^':]+)'?: ?")


def unreadable(error: Exception) -> ConfigError | None:
    """Say where a file is not YAML, or that it cannot be read; None where that is not it."""
    for link in chain(error):
        if isinstance(link, MarkedYAMLError) and link.problem_mark is not None:
            mark = link.problem_mark
            place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
            return ConfigError(
                f"{place}: not valid YAML: {link.problem}.",
                hint="Mend the file there, or in the line above.",
            )
        if isinstance(link, PermissionError | UnicodeDecodeError):
            return ConfigError(
                f"A configuration file cannot be read: {link}.",
                hint="It has to be readable, and text in UTF-8.",
            )
    return None


def not_ours(session: Session) -> ConfigError:
    """Say that the primary configuration does not include hpckit's."""
    return ConfigError(
        f"{_path(session, session.config_name)} does not build on hpckit's configuration.",
        hint="Put `- hpckit` first in its defaults list, or choose another with --config-name.",
    )


def missing(
    error: MissingConfigException, session: Session, overrides: Sequence[str]
) -> ConfigError:
    """Say which file was looked for, by whom, and what there is instead."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    inside = _IN_FILE.match(first_line(error))
    if not group and inside is None:
        return _missing_primary(session, option)
    asked = [word for word in overrides if word.lstrip("+").startswith((f"{group}=", f"{group}@"))]
    place = asked[0] if asked else _path(session, inside[1]) if inside else session.config_name
    groups = session.groups()
    if group not in groups:
        return ConfigError(
            f"{place}: there is no {group or option}.{question(nearest(group or option, groups))}",
            hint=f"Groups: {', '.join(groups)}.",
        )
    return ConfigError(
        f"{place}: {group} has no option {option!r}.{question(nearest(option, groups[group]))}",
        hint=f"Options of {group}: {', '.join(groups[group])}. One of your own is a file "
        f"conf/{group}/{option}.yaml.",
    )


def content(error: Exception, session: Session) -> ConfigError:
    """Say what is wrong inside a file; Hydra names the file at the start of its message."""
    inside = _IN_FILE.match(first_line(error))
    place = _path(session, inside[1] if inside else session.config_name)
    cause = inner(error)
    if cause is None:
        return ConfigError(f"{place}: {_without_file(error)}.", hint="Mend its defaults list.")
    key = str(cause.full_key or "")
    if not key:
        return ConfigError(f"{place}: it is not a mapping of keys.", hint="Write `key: value`.")
    if unknown_key(cause):
        section, _, name = key.rpartition(".")
        known = known_in(section)
        return ConfigError(
            f"{place}: {key} is not a key of hpckit.{question(nearest(name, known))}",
            hint=f"Known in {section}: {', '.join(known)}.",
        )
    return ConfigError(f"{place}: {key}: {reason(error)}.", hint=takes(key))


def _missing_primary(session: Session, name: str) -> ConfigError:
    known = [option for option in session.options("") if not option.startswith("hpckit")]
    folders = ", ".join(str(folder) for folder in session.folders)
    return ConfigError(
        f"There is no configuration {name!r} in {folders}.{question(nearest(name, known))}",
        hint=f"Known: {', '.join(known)} (--config-name).",
    )


def _path(session: Session, config: str) -> str:
    """Return the file of a configuration, by its path in the search path."""
    relative = Path(f"{config.removesuffix('.yaml')}.yaml")
    found = [folder / relative for folder in session.folders if (folder / relative).is_file()]
    return str(found[0] if found else relative)


def _without_file(error: Exception) -> str:
    """Return Hydra's message as one line, without the file that it begins with."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return _IN_FILE.sub("", " ".join(filter(None, lines)), count=1).removesuffix(".")
