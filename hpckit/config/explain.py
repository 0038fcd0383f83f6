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
from hpckit.config.failures import FAILURES, NOT_LISTED, inner, reason, unknown_key
from hpckit.config.names import dotted_keys, meant_by, nearest, question, siblings
from hpckit.config.overrides import parse
from hpckit.config.primary import is_ours
from hpckit.config.schema import known_in, takes
from hpckit.config.session import Session
from hpckit.errors import ConfigError
from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import Cluster

_Groups = Mapping[str, tuple[str, ...]]


def load_config(session: Session, overrides: Sequence[str]) -> DictConfig:
    """Compose one configuration, unresolved; raises ConfigError with one message."""
    try:
        config = session.load(overrides)
    except FAILURES as error:
        raise _explain(error, session, overrides) from error
    if "cluster" not in config or OmegaConf.get_type(config, "cluster") is not Cluster:
        raise explain_file.not_ours(session)
    late = [name for name in config.get("imports") or () if name not in sys.modules]
    if late:
        raise ConfigError(
            f"imports: {', '.join(late)} cannot be imported before composing.",
            hint="Name such modules in the file of the primary configuration itself, or on the "
            f"command line: imports=[{','.join(late)}]",
        )
    forgotten = explain_file.without_package(config, session, overrides)
    if forgotten is not None:
        raise forgotten
    return config


def _explain(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError:
    if not is_ours(session.folders, session.config_name):
        return explain_file.not_ours(session)
    unreadable = explain_file.explain_unreadable_file(error, session)
    if unreadable is not None:
        return unreadable
    if isinstance(error, MissingConfigException):
        return explain_file.explain_missing_file(error, session, overrides)
    words = parse(overrides, session.loader)
    return (
        _without_package(session, words)
        or _culprit(session, words)
        or explain_file.content(error, session, overrides)
    )


def _without_package(session: Session, words: Sequence[Override]) -> ConfigError | None:
    """Return an error if the experiment's keys are not at the root, where overrides expect them."""
    choices = [str(word.input_line) for word in words if session.has_group(word.key_or_group)]
    try:
        config = session.load(choices)
    except FAILURES:
        return None
    return explain_file.without_package(config, session, choices)


def _culprit(session: Session, overrides: Sequence[Override]) -> ConfigError | None:
    """Find the first override that does not compose, groups before values, and explain it.

    Returns None if the files do not compose even without overrides.
    """
    groups = session.groups()
    ordered = sorted(overrides, key=lambda override: override.key_or_group not in groups)
    base = _try(session, ())
    for count, override in enumerate(ordered, start=1):
        if isinstance(base, Exception):
            break
        composed = _try(session, ordered[:count])
        if isinstance(composed, Exception):
            return _fault(override, composed, base, groups)
        base = composed
    return None


def _try(session: Session, overrides: Sequence[Override]) -> DictConfig | Exception:
    try:
        return session.load([str(override.input_line) for override in overrides])
    except FAILURES as error:
        return error


def _fault(
    override: Override, error: Exception, base: DictConfig, groups: _Groups
) -> ConfigError | None:
    key, line = override.key_or_group, override.input_line
    if key in groups and not isinstance(override.value(), dict):
        return _in_group(override, error)
    keys = dotted_keys(cast("dict[str, Any]", OmegaConf.to_container(base)))
    if "/" in key or override.package is not None:
        return explain_file.no_group(str(override.input_line), f"group {key}", key, groups)
    if unknown_key(error):
        cause = inner(error)
        lost = str(cause.full_key) if cause is not None and key in keys else key
        return _unknown(override, lost, keys, groups)
    hint = "Set it to another value instead." if override.is_delete() else takes(key)
    return ConfigError(f"{line}: {reason(error)}.", hint=hint)


def _in_group(override: Override, error: Exception) -> ConfigError | None:
    line, group = str(override.input_line), override.key_or_group
    told = str(error)
    inside = "raised while composing" in told or "appears more than once" in told
    inside = inside or told.startswith(f"In '{group}/")
    if inside or (not override.is_add() and "Multiple values for" in told):
        return None  # the chosen file is wrong, not the choice
    if override.is_add():
        return ConfigError(f"{line}: {group} is chosen already.", hint=f"Write {line.lstrip('+')}")
    if NOT_LISTED in told:
        return ConfigError(
            f"{line}: the defaults list of the primary configuration has no {group} to replace.",
            hint=f"Write +{line}, or put `- {group}: null` last in that list (`--info searchpath` "
            "shows the files).",
        )
    return ConfigError(
        f"{line}: {reason(error)}.",
        hint=f"Write {group}=OPTION; `--info groups` lists the options.",
    )


def _unknown(override: Override, key: str, keys: Sequence[str], groups: _Groups) -> ConfigError:
    section = key.rpartition(".")[0]
    beside = siblings(key, keys)
    message = (
        f"{override.input_line}: there is no key {key}.{question(nearest(key, [*groups, *keys]))}"
    )
    cause = key.rpartition(".")[2]
    if section == "recovery.restarts" and cause not in RESTARTABLE:
        return ConfigError(
            f"{override.input_line}: {cause} is no cause that a run is started again after."
            f"{question(nearest(cause, RESTARTABLE))}",
            hint=f"Causes: {', '.join(RESTARTABLE)}.",
        )
    if known_in(section):
        return ConfigError(message, hint=f"Known in {section}: {', '.join(known_in(section))}.")
    if override.is_delete():
        return ConfigError(message, hint=f"Known: {', '.join(beside or siblings('', keys))}.")
    line = str(override.input_line).lstrip("+")
    # Next to a key that exists, `+` may be taken for a slip, too; `++` never is.
    plus = "++" if "Did you mean" in message or meant_by(key) is not None else "+"
    hint = f"To add a key of your own by that name, write {plus}{line}"
    if not known_in(key.partition(".")[0]):
        hint += f"; a command gets what stands behind `--`: {line}, or '${{{key}}}' there"
    return ConfigError(message, hint=hint)
