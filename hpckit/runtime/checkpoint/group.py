"""The ranks that save and load together, on their own CPU group.

Makes ranks agree: all ranks adopt what one rank decides, and a failure of one is known to all, so
that no rank waits for one that has given up. Without a process group it is a single rank.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from hpckit.errors import causes
from hpckit.runtime.checkpoint.errors import (
    CheckpointError,
    FencedError,
    RefusedStateError,
    StateError,
    UnknownOwnerError,
)
from hpckit.runtime.cpu_group import make_cpu_group
from hpckit.values import dataclass

T = TypeVar("T")

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_AWAY = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ECONNREFUSED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ESHUTDOWN,
    }
)
"""Errors of a network file system whose server is away; local disks raise only EIO of these."""


class ProblemKind(StrEnum):
    """What a failure means for the next try.

    `full` and `away` may pass: a disk without room, a file system that does not answer. `refused`
    is by an object of the user's.
    """

    full = "full"
    away = "away"
    fenced = "fenced"
    state = "state"
    refused = "refused"
    other = "other"


_ERRORS: Mapping[ProblemKind, type[CheckpointError]] = {
    ProblemKind.fenced: FencedError,
    ProblemKind.state: StateError,
    ProblemKind.refused: RefusedStateError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a rank could not do its part."""

    rank: int
    kind: ProblemKind
    text: str
    hint: str = ""

    def error(self, doing: str) -> CheckpointError:
        """Return the exception for this problem."""
        kind = _ERRORS.get(self.kind, CheckpointError)
        return kind(f"{doing} failed on rank {self.rank}: {self.text}", hint=self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """The result of one rank's part: a value, or a problem."""

    value: T | None = None
    problem: Problem | None = None

    def result(self, doing: str) -> T:
        """Return the value; raises a CheckpointError that explains why there is none."""
        if self.problem is not None:
            raise self.problem.error(doing)
        return cast("T", self.value)


class Group:
    """All ranks of the run; made by all of them at once, used by one thread at a time."""

    def __init__(self, timeout: timedelta) -> None:
        self.process_group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.process_group = make_cpu_group(timeout)
        alone = self.process_group is None
        self.rank: int = 0 if alone else dist.get_rank(self.process_group)
        self.size: int = 1 if alone else dist.get_world_size(self.process_group)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        if self.process_group is None:
            return [value]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self.process_group)
        return everyone

    def each(self, action: Callable[[], T]) -> list[Part[T]]:
        """Let every rank act; return all parts, the same on every rank."""
        return self.gather(self.own(action))

    def first(self, action: Callable[[], T]) -> Part[T]:
        """Let rank 0 act; return its part on every rank."""
        return self.one(0, action)

    def one(self, rank: int, action: Callable[[], T]) -> Part[T]:
        """Let one rank act; return its part on every rank."""
        told = [self.own(action) if self.rank == rank else Part()]
        if self.process_group is not None:
            dist.broadcast_object_list(told, src=rank, group=self.process_group)
        return told[0]

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is true on any rank; all ranks have as many."""
        if self.process_group is None or not flags:
            return list(flags)
        joined = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(joined, dist.ReduceOp.MAX, group=self.process_group)
        return [bool(flag) for flag in joined.tolist()]

    def own(self, action: Callable[[], T]) -> Part[T]:
        """Let this rank act by itself, and tell nobody; return its part."""
        try:
            return Part(value=action())
        except (Exception, CheckpointException) as error:  # noqa: BLE001  # the others wait for a result
            return Part(problem=problem_of(error, self.rank))

    def close(self) -> None:
        """Leave the group."""
        if self.process_group is not None and dist.is_initialized():
            dist.destroy_process_group(self.process_group)
        self.process_group = None


_FIRST = (ProblemKind.full, ProblemKind.away)
"""Kinds of problems that cause others."""


def first_problem(parts: Sequence[Part[Any]]) -> Problem | None:
    """Return the problem to act on: a full disk before the failures that follow from it."""
    problems = [part.problem for part in parts if part.problem is not None]
    return _first(problems) if problems else None


def _first(problems: Sequence[Problem]) -> Problem:
    order = {kind: place for place, kind in enumerate(_FIRST)}
    return min(problems, key=lambda one: order.get(one.kind, len(_FIRST)))


def problem_of(error: BaseException, rank: int) -> Problem:
    """Describe what was raised on this rank, or by torch on behalf of another one."""
    if isinstance(error, CheckpointException) and error.failures:
        return _first([problem_of(one, at) for at, (one, _) in sorted(error.failures.items())])
    if isinstance(error, CheckpointError):
        return Problem(rank=rank, kind=_kind_of(error), text=error.message, hint=error.hint)
    return Problem(rank=rank, kind=_kind_below(error), text=f"{type(error).__name__}: {error}")


def _kind_of(error: CheckpointError) -> ProblemKind:
    if isinstance(error, UnknownOwnerError):
        return ProblemKind.away
    kinds = (kind for kind, raised in _ERRORS.items() if isinstance(error, raised))
    return next(kinds, ProblemKind.other)


def _kind_below(error: BaseException) -> ProblemKind:
    number = passing(error)
    if number is None:
        return ProblemKind.other
    return ProblemKind.full if number in _FULL else ProblemKind.away


def passing(error: BaseException) -> int | None:
    """Return the error number at the root if it may pass (disk full or away); None otherwise."""
    numbers = {cause.errno for cause in causes(error) if isinstance(cause, OSError) and cause.errno}
    return min(numbers & _FULL or numbers & _AWAY, default=None)
