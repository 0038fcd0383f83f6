"""The answers to requests for profiles: a file for each, in the attempt's folder."""

from __future__ import annotations

import contextlib
import json

from hpckit.model.plain import from_plain, to_plain
from hpckit.model.profile.answer import ProfileAnswer, is_profile_id
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import make_folder, read_json, write_text


def write_profile_answer(paths: AttemptPaths, answer: ProfileAnswer) -> None:
    """Replace the answer to one request; raises OSError."""
    make_folder(paths.profiles)
    text = json.dumps(to_plain(answer), separators=(",", ":")) + "\n"
    write_text(paths.profile_answer(answer.id), text, lasting=False)


def read_profile_answer(paths: AttemptPaths, name: str) -> ProfileAnswer | None:
    """Return the answer to the request with this name; None without a readable one."""
    if not is_profile_id(name):
        return None
    try:
        answer = from_plain(ProfileAnswer, read_json(paths.profile_answer(name)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return answer if answer.id == name else None


def latest_profile(paths: AttemptPaths) -> ProfileAnswer | None:
    """Return the newest answer of an attempt that something was profiled for; None without one."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [file.stem for file in paths.profiles.iterdir() if file.suffix == ".json"]
    answers = (read_profile_answer(paths, name) for name in names)
    profiled = [one for one in answers if one is not None and one.refused is None]
    return max(profiled, key=lambda one: one.at, default=None)
