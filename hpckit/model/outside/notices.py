"""Notices to people: what a user may configure (the section `notify`), and what a notice says.

`scripts/config_reference.py` takes the docstrings below the fields of `Notify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from hpckit.values import dataclass, field

VARIABLE = "HPCKIT_NOTIFY"
"""The variable with the addresses of notices, which are secrets."""


class NoticeKind(StrEnum):
    """What a notice can be about."""

    failed = "failed"
    """a run failed or was interrupted, and nothing starts it again by itself"""
    completed = "completed"
    """a run completed"""
    resumed = "resumed"
    """a run starts again, in the same allocation or in a new one"""
    stalled = "stalled"
    """a run hung, and its ranks were ended"""
    finished = "finished"
    """all runs of the launch are over, and nothing starts one again by itself"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Notices that hpckit sends to people or programs.

    Where they go is a secret, so it is not in the configuration: `$HPCKIT_NOTIFY` or a private file
    names it ([guide](../guides/notify-and-trackers.md#notices)).
    """

    events: list[NoticeKind] = field(default_factory=list)
    """What is told, each once. Empty: nothing."""
    file: str | None = None
    """A file with one address per line, which only you may read; an absolute path, or one with `~`.
    Null: `$HPCKIT_NOTIFY`, where there is more than one address with line breaks between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserNotice:
    """One notice. `key` is the name of its files: one event has one key, whoever tells of it.

    `run` is null for the whole launch. `counts` are the states of all runs, `metrics` the latest
    values. `command` shows more.
    """

    key: str
    kind: NoticeKind
    at: datetime
    launch: str
    folder: str
    state: str
    title: str
    text: str
    command: str
    run: str | None = None
    attempt: int | None = None
    cause: str | None = None
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
