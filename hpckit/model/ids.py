"""The ids of launches, runs, jobs and attempts, and their text form. Pure.

`parse` and `str` are inverse.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime

from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

_NOT_SLUG = lazy_pattern(r"[^A-Za-z0-9_-]+")
_SLUG_LENGTH = 40
_JOB = lazy_pattern(r"(?P<main>[0-9]+)(?:_(?P<index>[0-9]+))?\Z")


def slugify_name(name: str) -> str:
    """Return `name` reduced to letters, digits, `-` and `_`: safe in paths and job names."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _NOT_SLUG.sub("-", ascii_name).strip("-")[:_SLUG_LENGTH].strip("-") or "run"


def build_launch_id(name: str, *, created_at: datetime, token: str) -> str:
    """Return the id of a launch: its name, its creation time and a random token."""
    return f"{slugify_name(name)}-{created_at:%Y%m%d-%H%M%S}-{token}"


def extract_name_from_launch_id(launch: str) -> str:
    """Return the name that a launch's id begins with."""
    return launch.rsplit("-", 3)[0]


def build_run_id(launch: str, index: int) -> str:
    """Return the id of the run with this index in the launch."""
    return f"{launch}.{index}"


def split_run_id(text: str) -> tuple[str, int | None]:
    """Split `LAUNCH.INDEX` into its parts; the index is None if there is none."""
    launch, dot, index = text.rpartition(".")
    if dot and index.isdecimal():
        return launch, int(index)
    return text, None


def is_slurm_job_id(text: str) -> bool:
    """Whether this is the id of a job or array element, as `JobId.parse` reads it."""
    return _JOB.match(text.strip()) is not None


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A Slurm job or array element: `123` or `123_4`."""

    main: int
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Parse `123` or `123_4`. Raises ValueError for anything else (steps, ranges)."""
        match = _JOB.match(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a job id; expected 123 or 123_4")
        index = match["index"]
        return cls(int(match["main"]), None if index is None else int(index))

    def __str__(self) -> str:
        return str(self.main) if self.index is None else f"{self.main}_{self.index}"
