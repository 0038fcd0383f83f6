"""The notices of a launch: one file for each, made by the first process that reports the event.

A notice is kept before it is sent. A second file claims the sending, a third says that it is done,
so that what could not be sent is sent later, once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hpckit.model.plain import from_plain
from hpckit.model.settings import UserNotice
from hpckit.record.layout import LaunchPaths, NoticePaths
from hpckit.record.process import this_host
from hpckit.record.store import create_file_if_missing, make_private_folder, read_json, write_json

STALE_S = 120.0
"""A claim this old is of a sender that was killed."""


def write_user_notice(paths: LaunchPaths, key: str, document: object) -> bool:
    """Write a notice; return False if the event has one already. Raises OSError."""
    make_private_folder(paths.notices)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return create_file_if_missing(paths.notice(key).notice_file, text)


def read_unsent_user_notices(paths: LaunchPaths) -> tuple[UserNotice, ...]:
    """Return the notices that are not sent to everyone, oldest first; unreadable ones are not."""
    found: list[UserNotice] = []
    try:
        names = sorted(path.name for path in paths.notices.iterdir())
    except OSError:
        return ()
    done = {name.removesuffix(".sent") for name in names if name.endswith(".sent")}
    for name in names:
        if not name.startswith(".") and name.endswith(".json") and name[:-5] not in done:
            with suppress(OSError, ValueError, TypeError, KeyError):
                found.append(from_plain(UserNotice, read_json(paths.notices / name)))
    return tuple(sorted(found, key=lambda one: one.at))


def claim_notice_sending(notice: NoticePaths) -> bool:
    """Claim the sending of a notice; return False if it is sent, or someone else sends it."""
    for _ in range(2):
        if notice.sent_marker_file.exists():
            return False
        text = json.dumps({"host": this_host(), "pid": os.getpid()}) + "\n"
        if create_file_if_missing(notice.sending_claim_file, text):
            # Another process may have finished between the two looks.
            if notice.sent_marker_file.exists():
                notice.sending_claim_file.unlink(missing_ok=True)
                return False
            return True
        if not _remove_stale_sending_claim(notice.sending_claim_file):
            return False
    return False


def _remove_stale_sending_claim(claim: Path) -> bool:
    """Remove the claim of a sender that was killed; only one of several processes succeeds."""
    try:
        if time.time() - claim.stat().st_mtime < STALE_S:
            return False
        mine = claim.with_name(f".{claim.name}.{os.urandom(4).hex()}")
        claim.rename(mine)
        mine.unlink()
    except OSError:
        return False
    return True


def read_delivered_destination_indices(notice: NoticePaths) -> frozenset[int]:
    """Return the places of the destinations that have the notice already."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return frozenset(read_json(notice.delivered_file)["places"])
    return frozenset()


def read_notice_sending_problems(notice: NoticePaths) -> tuple[str, ...]:
    """Return why a notice was not sent when that was last tried; none if it was not."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return tuple(str(problem) for problem in read_json(notice.delivered_file)["problems"])
    return ()


def record_notice_delivery(
    notice: NoticePaths, delivered: Collection[int], *, all_of_them: bool, problems: Collection[str] = ()
) -> None:
    """Record who has the notice, and why others do not; give the claim back. Raises OSError."""
    path = notice.sent_marker_file if all_of_them else notice.delivered_file
    if delivered or problems:
        told = {"problems": list(problems)} if problems else {}
        write_json(path, {"places": sorted(delivered), **told})
    if all_of_them:
        notice.delivered_file.unlink(missing_ok=True)
    notice.sending_claim_file.unlink(missing_ok=True)
