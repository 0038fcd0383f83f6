"""Turns a failed composition into one clear message, without repairing anything.

Hydra's own messages differ between releases and point at stack frames. So the cause is searched for
by composing with one more override at a time, else in the files (explain_file).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from hpckit.config import explain_file
from hpckit.config.failures import (
    FAILURES,
    NOT_LISTED,
    find_omegaconf_error,
    is_unknown_key_error,
    most_specific_error_line,
)
from hpckit.config.names import (
    format_did_you_mean,
    guess_intended_key,
    list_dotted_keys,
    list_sibling_keys,
    suggest_nearest_names,
)
from hpckit.config.overrides import parse_hydra_overrides
from hpckit.config.primary import builds_on_hpckit
from hpckit.config.schema import describe_allowed_values, list_section_keys
from hpckit.config.session import Session
from hpckit.errors import ConfigError
from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import Cluster

_Groups = Mapping[str, tuple[str, ...]]


def load_config(session: Session, overrides: Sequence[str]) -> DictConfig:
    """Compose one configuration, unresolved; raises ConfigError with one message."""
    try:
        config = session.compose_config(overrides)
    except FAILURES as error:
        raise _explain_composition_error(error, session, overrides) from error
    if "cluster" not in config or OmegaConf.get_type(config, "cluster") is not Cluster:
        raise explain_file.explain_config_without_hpckit(session)
    late = [name for name in config.get("imports") or () if name not in sys.modules]
    if late:
        raise ConfigError(
            f"imports: {', '.join(late)} cannot be imported before composing.",
            hint="Name such modules in the file of the primary configuration itself, or on the "
            f"command line: imports=[{','.join(late)}]",
        )
    forgotten = explain_file.explain_misplaced_experiment_keys(config, session, overrides)
    if forgotten is not None:
        raise forgotten
    return config


def _explain_composition_error(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError:
    if not builds_on_hpckit(session.folders, session.config_name):
        return explain_file.explain_config_without_hpckit(session)
    unreadable = explain_file.explain_unreadable_file(error, session)
    if unreadable is not None:
        return unreadable
    if isinstance(error, MissingConfigException):
        return explain_file.explain_missing_file(error, session, overrides)
    words = parse_hydra_overrides(overrides, session.loader)
    return (
        _explain_misplaced_experiment_keys(session, words)
        or _explain_failing_override(session, words)
        or explain_file.explain_invalid_content(error, session, overrides)
    )


def _explain_misplaced_experiment_keys(session: Session, words: Sequence[Override]) -> ConfigError | None:
    choices = [str(word.input_line) for word in words if session.has_group(word.key_or_group)]
    try:
        config = session.compose_config(choices)
    except FAILURES:
        return None
    return explain_file.explain_misplaced_experiment_keys(config, session, choices)


def _explain_failing_override(session: Session, overrides: Sequence[Override]) -> ConfigError | None:
    """Find the first override that does not compose, groups before values, and explain it.

    Returns None if the files do not compose even without overrides.
    """
    groups = session.list_option_groups()
    ordered = sorted(overrides, key=lambda override: override.key_or_group not in groups)
    base = _compose_or_return_error(session, ())
    for count, override in enumerate(ordered, start=1):
        if isinstance(base, Exception):
            break
        composed = _compose_or_return_error(session, ordered[:count])
        if isinstance(composed, Exception):
            return _explain_override_error(override, composed, base, groups)
        base = composed
    return None


def _compose_or_return_error(session: Session, overrides: Sequence[Override]) -> DictConfig | Exception:
    try:
        return session.compose_config([str(override.input_line) for override in overrides])
    except FAILURES as error:
        return error


def _explain_override_error(
    override: Override, error: Exception, base: DictConfig, groups: _Groups
) -> ConfigError | None:
    key, line = override.key_or_group, override.input_line
    if key in groups and not isinstance(override.value(), dict):
        return _explain_group_choice(override, error)
    keys = list_dotted_keys(cast("dict[str, Any]", OmegaConf.to_container(base)))
    if "/" in key or override.package is not None:
        return explain_file.explain_unknown_group(str(override.input_line), f"group {key}", key, groups)
    if is_unknown_key_error(error):
        cause = find_omegaconf_error(error)
        lost = str(cause.full_key) if cause is not None and key in keys else key
        return _explain_unknown_key(override, lost, keys, groups)
    hint = "Set it to another value instead." if override.is_delete() else describe_allowed_values(key)
    return ConfigError(f"{line}: {most_specific_error_line(error)}.", hint=hint)


def _explain_group_choice(override: Override, error: Exception) -> ConfigError | None:
    line, group = str(override.input_line), override.key_or_group
    told = str(error)
    inside = "raised while composing" in told or "appears more than once" in told
    inside = inside or told.startswith(f"In '{group}/")
    if inside or (not override.is_add() and "Multiple values for" in told):
        return None  # the chosen file is wrong, not the choice
    if override.is_add():
        return ConfigError(f"{line}: {group} is already chosen.", hint=f"Write {line.lstrip('+')}")
    if NOT_LISTED in told:
        return ConfigError(
            f"{line}: the defaults list of the primary configuration has no {group} to replace.",
            hint=f"Write +{line}, or put `- {group}: null` last in that list (`--info searchpath` "
            "shows the files).",
        )
    return ConfigError(
        f"{line}: {most_specific_error_line(error)}.",
        hint=f"Write {group}=OPTION; `--info groups` lists the options.",
    )


def _explain_unknown_key(override: Override, key: str, keys: Sequence[str], groups: _Groups) -> ConfigError:
    section = key.rpartition(".")[0]
    beside = list_sibling_keys(key, keys)
    missing = key.partition(".")[0] == "data" and "data" not in keys  # a group that nothing begins with
    if key.startswith(("data.stage.", "data.out.")) and not missing:
        table, name = ".".join(key.split(".")[:2]), key.split(".")[2]
        words = f"{override.input_line}: there is no item {name} in {table}."
        return ConfigError(words, hint=f"To add it, write +{str(override.input_line).lstrip('+')}")
    near = ["data=stage"] if missing else suggest_nearest_names(key, [*groups, *keys])
    message = f"{override.input_line}: there is no key {key}.{format_did_you_mean(near)}"
    cause = key.rpartition(".")[2]
    if section == "recovery.restarts" and cause not in RESTARTABLE:
        return ConfigError(
            f"{override.input_line}: {cause} is not a cause after which a run is restarted."
            f"{format_did_you_mean(suggest_nearest_names(cause, RESTARTABLE))}",
            hint=f"Causes: {', '.join(RESTARTABLE)}.",
        )
    if list_section_keys(section):
        return ConfigError(message, hint=f"Known in {section}: {', '.join(list_section_keys(section))}.")
    if override.is_delete():
        return ConfigError(message, hint=f"Known: {', '.join(beside or list_sibling_keys('', keys))}.")
    line = str(override.input_line).lstrip("+")
    # Next to a key that exists, `+` may be taken for a slip, too; `++` never is.
    plus = "++" if "Did you mean" in message or guess_intended_key(key) is not None else "+"
    hint = f"To add a key of your own by that name, write {plus}{line}"
    hint += "" if "." in key else f", or params.{line} (params has what is yours)"
    if not list_section_keys(key.partition(".")[0]):
        hint += f"; a command gets what follows `--`: {line}, or '${{{key}}}' there"
    return ConfigError(message, hint=hint)
