"""Promises of planning.notices."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from hpckit.errors import ConfigError
from hpckit.model.settings import NoticeKind, UserNotice
from hpckit.planning.notices import (
    Destination,
    Transport,
    build_notice_web_request,
    notice_to_json,
    parse_notice_destinations,
)

NOTICE = UserNotice(
    key="failed-00000-001",
    kind=NoticeKind.failed,
    at=datetime(2026, 1, 2, tzinfo=UTC),
    launch="a-1",
    folder="/l",
    run="a-1.0",
    state="failed",
    title="a-1.0 failed früh",
    text="boom <!channel> & more",
    command="hpckit logs a-1.0",
)


def one(line: str) -> Destination:
    """Return the destination of one address."""
    (found,) = parse_notice_destinations(line, "$HPCKIT_NOTIFY")
    return found


def test_addresses_stand_one_per_line_with_comments() -> None:
    """Empty lines and comments count for nothing; places count what is left."""
    text = "# mine\n\nntfy://ntfy.sh/topic\n  exec:mail -s 'a run' me\nslack://a/b/c\n"
    found = parse_notice_destinations(text, "the file x")
    assert [(each.place, each.transport) for each in found] == [
        (1, Transport.ntfy),
        (2, Transport.command),
        (3, Transport.apprise),
    ]
    assert found[1].words == ("mail", "-s", "a run", "me")
    assert parse_notice_destinations("", "$HPCKIT_NOTIFY") == ()


@pytest.mark.parametrize(
    ("line", "url", "authorization"),
    [
        ("ntfy://ntfy.sh/topic", "https://ntfy.sh/topic", None),
        ("https://ntfy.sh/topic", "https://ntfy.sh/topic", None),
        ("ntfy+http://localhost:81/topic", "http://localhost:81/topic", None),
        ("ntfy://tk_abc@host/t", "https://host/t", "Bearer tk_abc"),
        ("ntfy://me:pw@host/t", "https://host/t", "Basic bWU6cHc="),
        ("ntfy+http://[::1]:81/t", "http://[::1]:81/t", None),
    ],
)
def test_topics_of_ntfy(line: str, url: str, authorization: str | None) -> None:
    """Users and tokens leave the URL for a header; text and headers are ntfy's."""
    request = build_notice_web_request(one(line), NOTICE)
    assert request.url == url
    assert request.headers.get("Authorization") == authorization
    assert request.headers["Title"] == "a-1.0 failed fr?h"
    assert (request.headers["Priority"], request.headers["Tags"]) == ("high", "x")
    assert request.body.decode() == NOTICE.text


def test_web_hooks_get_json() -> None:
    """Any other web address gets a text; in Slack's own, nothing of it calls a channel."""
    told = json.loads(build_notice_web_request(one("https://chat.example/hooks/x?thread=1"), NOTICE).body)
    assert told == {"text": f"{NOTICE.title}\n{NOTICE.text}"}
    assert build_notice_web_request(one("http://chat/x"), NOTICE).url == "http://chat/x"
    slack = build_notice_web_request(one("https://hooks.slack.com/services/T/B/x"), NOTICE)
    assert "boom &lt;!channel&gt; &amp; more" in json.loads(slack.body)["text"]


@pytest.mark.parametrize(
    "line",
    [
        "no-scheme-at-all-SECRET",
        "https:///SECRET",
        "https://host:SECRET/",
        "https://host/SECRET with spaces",
        "https://host/SECRET\x07",
        "ntfy://host/SECRET/deeper",
        "ntfy://host",
        "exec:",
        "exec:mail 'SECRET",
    ],
)
def test_wrong_address_is_refused_without_being_shown(line: str) -> None:
    """The error says which address of what is wrong, and how one looks."""
    with pytest.raises(ConfigError, match=r"address 2 of \$HPCKIT_NOTIFY") as caught:
        parse_notice_destinations(f"exec:true\n{line}", "$HPCKIT_NOTIFY")
    assert "SECRET" not in caught.value.message + caught.value.hint
    assert "exec:COMMAND" in caught.value.hint


def test_no_text_of_a_destination_shows_its_address() -> None:
    """Neither its name nor its repr, which a traceback might print."""
    for line in ("ntfy://tk_SECRET@host/SECRET", "https://h/SECRET", "exec:x SECRET", "json://SECRET"):
        found = one(line)
        assert "SECRET" not in f"{found!r} {found.name}"
        if found.transport in {Transport.ntfy, Transport.web_hook}:
            assert "SECRET" not in repr(build_notice_web_request(found, NOTICE))


def test_document_has_every_field() -> None:
    """What a command reads is what the notice's file holds."""
    told = notice_to_json(NOTICE)
    assert (told["v"], told["kind"], told["run"]) == (1, "failed", "a-1.0")
    assert told["at"] == "2026-01-02T00:00:00.000+00:00"
