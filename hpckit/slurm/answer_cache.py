"""Caches Slurm's answers in a file of the user, so that one process asks and the others read.

It handles the file, its lock, and how long an answer or a failure stays valid. It is a cache:
whatever cannot be read or trusted counts as missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hpckit.errors import SchedulerAwayError, SchedulerError
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.store import make_private_folder, read_json, write_text_atomically
from hpckit.values import dataclass, field, replace

LONGEST = timedelta(minutes=5)
"""While processes need answers, Slurm is asked at least this often, however slow it is."""

_SLOW = 20
"""At most a twentieth of the time is spent waiting for Slurm to answer."""

_VERSION = 1
_KEPT_BYTES = 8 * 2**20
_POLL_S = 0.05
_NOBODY_ELSE = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """What a program printed, when it was asked, and whether that can still change."""

    asked_at: datetime
    text: str
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of one program, by key, and the result of its latest call.

    `took` is how long the latest call took; `failures` is how many calls failed in a row, the
    latest at `tried_at` with `message` and `hint`.
    """

    answers: Mapping[str, CachedAnswer] = field(default_factory=dict)
    tried_at: datetime | None = None
    took: timedelta = timedelta()
    failures: int = 0
    message: str = ""
    hint: str = ""

    def max_answer_age(self, least: timedelta) -> timedelta:
        """Return how old an answer may be: more if the program was slow."""
        return max(least, min(self.took * _SLOW, LONGEST))

    def refuse_early_retry(self, least: timedelta, now: datetime) -> None:
        """Raise SchedulerAwayError if the program failed too recently to be called again.

        The pause is twice `least`, then four times, …, at most five minutes.
        """
        if not self.failures or self.tried_at is None:
            return
        pause = min(self.max_answer_age(least) * 2 ** min(self.failures, 16), LONGEST)
        if self.tried_at <= now < self.tried_at + pause:
            left = (self.tried_at + pause - now).total_seconds()
            since = (now - self.tried_at).total_seconds()
            raise SchedulerAwayError(
                f"{self.message} (asked {since:.0f} s ago, next try in {left:.0f} s)", hint=self.hint
            )

    def with_new_answers(
        self, found: Mapping[str, str], at: datetime, took: timedelta, *, final: Container[str] = ()
    ) -> Answers:
        """Return the answers with the new ones; the oldest are dropped if they become too large."""
        new = {key: CachedAnswer(asked_at=at, text=text, final=key in final) for key, text in found.items()}
        old = [(key, one) for key, one in self.answers.items() if key not in new]
        room = _KEPT_BYTES - sum(len(answer.text) for answer in new.values())
        for key, one in sorted(old, key=lambda pair: pair[1].asked_at, reverse=True):
            room -= len(one.text)
            if room > 0:
                new[key] = one
        return Answers(answers=new, tried_at=at, took=took)

    def with_failed_call(self, error: SchedulerError, at: datetime, took: timedelta) -> Answers:
        """Return the answers after a failed call."""
        return replace(
            self, tried_at=at, took=took, failures=self.failures + 1, message=error.message, hint=error.hint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFolder:
    """The folder of one user's answers from one cluster, as seen from one host."""

    folder: Path

    def load(self, program: str) -> Answers:
        """Return the cached answers of a program; empty if they cannot be read."""
        try:
            record = read_json(self._answer_file(program))
            if record["v"] == _VERSION:
                return _answers_from_json(record)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
        return Answers()

    def save(self, program: str, answers: Answers) -> None:
        """Save answers; errors such as a full disk are ignored."""
        record = {"v": _VERSION, **to_plain(answers)}
        with contextlib.suppress(OSError):
            write_text_atomically(self._answer_file(program), json.dumps(record), lasting=False)

    @property
    def jobs_changed_at(self) -> datetime | None:
        """When this user last submitted or cancelled: earlier answers are out of date."""
        try:
            return datetime.fromtimestamp(self._job_change_marker_file.stat().st_mtime, UTC)
        except OSError:
            return None

    def record_job_change(self, at: datetime) -> None:
        """Record that the user's jobs have changed."""
        with contextlib.suppress(OSError):
            self._job_change_marker_file.touch(mode=0o600)
            os.utime(self._job_change_marker_file, (at.timestamp(), at.timestamp()))

    @contextlib.contextmanager
    def lock_queries(self, patience: timedelta) -> Iterator[None]:
        """Wait while another process asks; continue anyway if locking fails or takes too long."""
        try:
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield
            return
        try:
            _wait_for_file_lock(handle, patience)
            yield
        finally:
            os.close(handle)

    @property
    def _job_change_marker_file(self) -> Path:
        return self.folder / "changed"

    def _answer_file(self, program: str) -> Path:
        return self.folder / f"{program}.json"


def find_answer_folder(environ: Mapping[str, str], bin_dir: str | None, *, make: bool) -> AnswerFolder | None:
    """Return the answer folder for this host's Slurm; None if there is no safe place for one.

    Every host has its own, because two clusters may share a home and the paths of their programs.
    """
    base = _find_cache_folder(environ)
    if base is None:
        return None
    squeue = shutil.which("squeue", path=bin_dir or environ.get("PATH", os.defpath))
    conf = environ.get("SLURM_CONF")
    where = (socket.gethostname(), squeue, *_file_stamp(squeue), conf, *_file_stamp(conf))
    name = hashlib.sha256(repr(where).encode()).hexdigest()[:16]
    folder = base / "hpckit" / f"queue-{name}"
    try:
        if make:
            make_private_folder(folder)
        about = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return AnswerFolder(folder=folder) if own and not about.st_mode & _NOBODY_ELSE else None


def _file_stamp(path: str | None) -> tuple[int, ...]:
    """Return what distinguishes a program or configuration from a later one there, as of a new sandbox."""
    try:
        seen = Path(path or "").stat()
    except (OSError, ValueError):
        return ()
    return () if path is None else (seen.st_ino, seen.st_mtime_ns)


def _find_cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's cache folder, according to the XDG base directory rules."""
    chosen = Path(environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen
    home = Path(environ.get("HOME", ""))
    return home / ".cache" if home.is_absolute() else None


def _wait_for_file_lock(handle: int, patience: timedelta) -> None:
    until = time.monotonic() + patience.total_seconds()
    while time.monotonic() < until:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        except OSError:  # a file system without locks
            return
        else:
            return


def _answers_from_json(record: dict[str, Any]) -> Answers:
    answers = {key: from_plain(CachedAnswer, one) for key, one in record["answers"].items()}
    if any(answer.asked_at.tzinfo is None for answer in answers.values()):
        raise ValueError("a moment without a time zone")
    return replace(from_plain(Answers, {**record, "answers": {}}), answers=answers)
