"""When a notice is due, by the record so that whoever looks decides alike; where it goes. Pure.

Reads addresses, and writes what each transport sends.
An address is a secret. No error, text or `repr` made here holds one.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from hpckit.errors import ConfigError
from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.plain import to_plain
from hpckit.model.run import RunView
from hpckit.model.settings import NoticeKind, UserNotice
from hpckit.model.states import RoundAction, RunState
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field

_FORMS = (
    "addresses are ntfy://HOST/TOPIC, https://ntfy.sh/TOPIC, https://… or http://… of a web "
    "hook, exec:COMMAND, or what apprise takes"
)
_SCHEME = lazy_pattern(r"([a-z][a-z0-9+.-]{0,20}):", re.IGNORECASE)
_TOPIC = lazy_pattern(r"/[-_A-Za-z0-9]{1,64}\Z")
_PLAIN_NTFY = "ntfy+http"
_NTFY_HOST = "ntfy.sh"
_SLACK_HOST = "hooks.slack.com"
_VERSION = 1

_PRIORITIES = {NoticeKind.failed: "high", NoticeKind.stalled: "high"}
_TAGS = {
    NoticeKind.failed: "x",
    NoticeKind.completed: "white_check_mark",
    NoticeKind.resumed: "arrows_counterclockwise",
    NoticeKind.stalled: "hourglass",
    NoticeKind.finished: "checkered_flag",
}


class Transport(StrEnum):
    """How a notice is sent."""

    ntfy = "ntfy"
    web_hook = "web hook"
    command = "exec"
    apprise = "apprise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One address: `place` counts from 1, `scheme` is that of the address.

    `url` is what is asked, without user and password; `words` the command.
    """

    place: int
    transport: Transport
    scheme: str
    url: str = field(default="", repr=False)
    words: tuple[str, ...] = field(default=(), repr=False)
    authorization: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The destination in messages, without its address."""
        return f"destination {self.place} ({self.transport})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """What a web server is sent by POST."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def parse_notice_destinations(text: str, source: str) -> tuple[Destination, ...]:
    """Return the destinations of a text with one address per line; `#` begins a comment line.

    Raises ConfigError, which names `source` and the place, and no address.
    """
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    return tuple(_parse_destination(line, place, source) for place, line in enumerate(found, start=1))


def _parse_destination(line: str, place: int, source: str) -> Destination:
    where = f"address {place} of {source}"
    scheme = _SCHEME.match(line)
    if scheme is None:
        _refuse_address(where, "has no scheme")
    match scheme[1].lower():
        case "exec":
            return _parse_exec_destination(line[scheme.end() :], place, where)
        case ("http" | "https" | "ntfy" | "ntfy+http") as name:
            return _parse_web_destination(line, name, place, where)
        case name:
            return Destination(place=place, transport=Transport.apprise, scheme=name, url=line)


def _parse_exec_destination(text: str, place: int, where: str) -> Destination:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        _refuse_address(where, f"is not a valid command: {error}")
    if not words:
        _refuse_address(where, "names no command")
    return Destination(place=place, transport=Transport.command, scheme="exec", words=words)


def _parse_web_destination(line: str, scheme: str, place: int, where: str) -> Destination:
    try:
        parts = urlsplit(line)
        host, port = parts.hostname, parts.port
    except ValueError:
        _refuse_address(where, "is no URL")
    if not host or not line.isprintable() or not line.isascii() or " " in line:
        _refuse_address(where, "is not a URL: it has no host, or a character that URLs cannot have")
    is_ntfy = scheme.startswith("ntfy") or host == _NTFY_HOST
    if is_ntfy and not _TOPIC.match(parts.path):
        _refuse_address(where, "names no ntfy topic: its path must be /TOPIC, of letters, digits, - and _")
    shown = f"[{host}]" if ":" in host else host
    place_of_host = shown if port is None else f"{shown}:{port}"
    kept = "http" if scheme in ("http", _PLAIN_NTFY) else "https"
    query = f"?{parts.query}" if parts.query else ""
    return Destination(
        place=place,
        transport=Transport.ntfy if is_ntfy else Transport.web_hook,
        scheme=scheme,
        url=f"{kept}://{place_of_host}{parts.path}{query}",
        authorization=_build_authorization_header(parts),
    )


def _build_authorization_header(parts: SplitResult) -> str | None:
    """Return the header for a user and password, or for a token in place of either."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user and not password:
        return None
    if not user or not password:
        return f"Bearer {user or password}"
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _refuse_address(where: str, why: str) -> NoReturn:
    raise ConfigError(f"{where} {why}", hint=f"{_FORMS}; the address itself is not shown")


def build_notice_web_request(destination: Destination, notice: UserNotice) -> WebRequest:
    """Return what to send to a topic of ntfy or to a web hook."""
    headers: dict[str, str] = {}
    if destination.authorization is not None:
        headers["Authorization"] = destination.authorization
    if destination.transport is Transport.ntfy:
        headers["Title"] = notice.title.encode("ascii", "replace").decode()
        headers["Priority"] = _PRIORITIES.get(notice.kind, "default")
        headers["Tags"] = _TAGS[notice.kind]
        headers["Content-Type"] = "text/plain; charset=utf-8"
        body = notice.text.encode(errors="replace")
    else:
        text = f"{notice.title}\n{notice.text}"
        if urlsplit(destination.url).hostname == _SLACK_HOST:
            text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        headers["Content-Type"] = "application/json"
        body = json.dumps({"text": text}).encode()
    return WebRequest(url=destination.url, headers=headers, body=body)


def notice_to_json(notice: UserNotice) -> dict[str, object]:
    """Return a notice as JSON has it: on a command's standard input, and in its file."""
    return {"v": _VERSION, **to_plain(notice)}


_LEFT = frozenset({RunState.failed, RunState.interrupted, RunState.unknown})
"""States in which a run is told of as failed once nothing continues it."""


def notice_kind_for_attempt_end(state: RunState, *, continues: bool) -> NoticeKind | None:
    """Return the notice kind for the end of an attempt; `continues`: whether another follows."""
    if state is RunState.completed:
        return NoticeKind.completed
    if state is RunState.failed:
        return NoticeKind.failed
    if state is RunState.interrupted and not continues:
        return NoticeKind.failed
    return None


def notice_kind_for_final_state(state: RunState) -> NoticeKind | None:
    """Return the kind of notice for a run when nothing continues any run of its launch."""
    if state is RunState.completed:
        return NoticeKind.completed
    return NoticeKind.failed if state in _LEFT else None


def notice_kinds_for_event(event: events.Event, attempt: int) -> tuple[NoticeKind, ...]:
    """Return the kinds of notices for an event of a running attempt."""
    match event:
        case events.RoundStarted() if attempt > 1 or event.round:
            return (NoticeKind.resumed,)
        case events.RoundEnded(failure=Failure(cause=Cause.hang)):
            return (NoticeKind.stalled,)
        case _:
            return ()


def was_new_attempt_decided(told: Iterable[events.Event]) -> bool:
    """Return whether the supervisor of an attempt decided that a new attempt should follow.

    A supervisor that is cut off loses all other nodes: it decides so, but cannot reach Slurm.
    """
    rounds = [event for event in told if isinstance(event, events.RoundEnded)]
    return bool(rounds) and rounds[-1].action is RoundAction.new_attempt


def is_run_over(view: RunView, *, continues: bool) -> bool:
    """Return whether a run is over, by the record; `continues` as in `notice_kind_for_attempt_end`."""
    record = view.record
    if record.cancel_requested and not record.has_attempt_begun:
        return True
    return view.state.is_final or (view.state is RunState.interrupted and not continues)
