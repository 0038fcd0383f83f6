"""Turns a failed composition into one clear message, without repairing anything.

Hydra's own messages differ between releases and point at stack frames. So the cause is searched for
by composing with one more override at a time (explain_override), else in the files (explain_file).
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from hpckit.config import explain_file, explain_override
from hpckit.config.failures import FAILURES
from hpckit.config.overrides import parse
from hpckit.config.session import Session
from hpckit.errors import ConfigError
from hpckit.model.launch import Cluster


def load_config(session: Session, overrides: Sequence[str]) -> DictConfig:
    """Compose one configuration, unresolved; raises ConfigError with one message."""
    try:
        config = session.load(overrides)
    except FAILURES as error:
        raise _explain(error, session, overrides) from error
    if "cluster" not in config or OmegaConf.get_type(config, "cluster") is not Cluster:
        raise explain_file.not_ours(session)
    forgotten = explain_file.without_package(config, session, overrides)
    if forgotten is not None:
        raise forgotten
    return config


def _explain(error: Exception, session: Session, overrides: Sequence[str]) -> ConfigError:
    unreadable = explain_file.explain_unreadable_file(error, session)
    if unreadable is not None:
        return unreadable
    if isinstance(error, MissingConfigException):
        return explain_file.explain_missing_file(error, session, overrides)
    if not _builds_on_schema(session):
        return explain_file.not_ours(session)
    words = parse(overrides, session.loader)
    return (
        _without_package(session, words)
        or explain_override.culprit(session, words)
        or explain_file.content(error, session, overrides)
    )


def _without_package(session: Session, words: Sequence[Override]) -> ConfigError | None:
    """Return an error if the experiment's keys are not at the root, where overrides expect them."""
    groups = session.groups()
    choices = [str(word.input_line) for word in words if word.key_or_group in groups]
    try:
        config = session.load(choices)
    except FAILURES:
        return None
    return explain_file.without_package(config, session, choices)


def _builds_on_schema(session: Session) -> bool:
    try:
        return session.builds_on_schema()
    except FAILURES:
        return True  # something else is wrong with its defaults list; that is reported instead
