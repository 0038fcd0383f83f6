"""The ranks that save and load together, on their own CPU group.

Makes ranks agree: all ranks adopt what one rank decides, and a failure of one is known to all, so
that no rank waits for one that has given up. Without a process group it is a single rank.

They also agree on what they hold in common: which rank writes a key that several have. With
pipeline stages ranks hold different keys. Ranks with the same keys form a part; a key that several
parts have belongs to the first of them, the one with the lowest rank, and has the same shape and
type in all. Every save exchanges a few digests per rank; only when these have changed, one rank of
each part sends its keys, in some 20 bytes each.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from hpckit.errors import iterate_error_causes
from hpckit.runtime.checkpoint.errors import (
    CheckpointError,
    FencedError,
    RefusedStateError,
    StateError,
    UnknownOwnerError,
)
from hpckit.runtime.cpu_group import make_gloo_group_of_all_ranks
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

    def to_error(self, doing: str) -> CheckpointError:
        """Return the exception for this problem."""
        kind = _ERRORS.get(self.kind, CheckpointError)
        return kind(f"{doing} failed on rank {self.rank}: {self.text}", hint=self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """The result of one rank's part: a value, or a problem."""

    value: T | None = None
    problem: Problem | None = None

    def value_or_raise(self, doing: str) -> T:
        """Return the value; raises a CheckpointError that explains why there is none."""
        if self.problem is not None:
            raise self.problem.to_error(doing)
        return cast("T", self.value)


class Group:
    """All ranks of the run; made by all of them at once, used by one thread at a time."""

    def __init__(self, timeout: timedelta) -> None:
        self.process_group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.process_group = make_gloo_group_of_all_ranks(timeout)
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

    def call_on_every_rank(self, action: Callable[[], T]) -> list[Part[T]]:
        """Let every rank act; return all parts, the same on every rank."""
        return self.gather(self.call_on_this_rank(action))

    def call_on_first_rank(self, action: Callable[[], T]) -> Part[T]:
        """Let rank 0 act; return its part on every rank."""
        return self.call_on_rank(0, action)

    def call_on_rank(self, rank: int, action: Callable[[], T]) -> Part[T]:
        """Let one rank act; return its part on every rank."""
        told = [self.call_on_this_rank(action) if self.rank == rank else Part()]
        if self.process_group is not None:
            dist.broadcast_object_list(told, src=rank, group=self.process_group)
        return told[0]

    def any_over_ranks(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is true on any rank; all ranks have as many."""
        if self.process_group is None or not flags:
            return list(flags)
        joined = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(joined, dist.ReduceOp.MAX, group=self.process_group)
        return [bool(flag) for flag in joined.tolist()]

    def call_on_this_rank(self, action: Callable[[], T]) -> Part[T]:
        """Let only this rank act, without a collective; return its part."""
        try:
            return Part(value=action())
        except (Exception, CheckpointException) as error:  # noqa: BLE001  # the others wait for a result
            return Part(problem=problem_from_error(error, self.rank))

    def close(self) -> None:
        """Leave the group."""
        if self.process_group is not None and dist.is_initialized():
            dist.destroy_process_group(self.process_group)
        self.process_group = None


_ORDER = {ProblemKind.full: 0, ProblemKind.away: 1}
"""Kinds of problems that cause others."""


def find_main_problem(parts: Sequence[Part[Any]]) -> Problem | None:
    """Return the problem to act on: a full disk before the failures that follow from it."""
    return _pick_main_problem([part.problem for part in parts if part.problem is not None])


def _pick_main_problem(problems: Sequence[Problem]) -> Problem | None:
    return min(problems, key=lambda problem: _ORDER.get(problem.kind, len(_ORDER)), default=None)


def problem_from_error(error: BaseException, rank: int) -> Problem:
    """Describe what was raised on this rank, or by torch on behalf of another one."""
    if isinstance(error, CheckpointException):
        failures = sorted(error.failures.items())
        if found := _pick_main_problem([problem_from_error(one, at) for at, (one, _) in failures]):
            return found
    if isinstance(error, CheckpointError):
        kinds = (kind for kind, raised in _ERRORS.items() if isinstance(error, raised))
        known = ProblemKind.away if isinstance(error, UnknownOwnerError) else ProblemKind.other
        return Problem(rank=rank, kind=next(kinds, known), text=error.message, hint=error.hint)
    kind, number = ProblemKind.other, find_transient_errno(error)
    if number is not None:
        kind = ProblemKind.full if number in _FULL else ProblemKind.away
    return Problem(rank=rank, kind=kind, text=f"{type(error).__name__}: {error}")


def find_transient_errno(error: BaseException) -> int | None:
    """Return the error number at the root if it may pass (disk full or away); None otherwise."""
    numbers = {
        cause.errno for cause in iterate_error_causes(error) if isinstance(cause, OSError) and cause.errno
    }
    return min(numbers & _FULL or numbers & _AWAY, default=None)


_HASH_BYTES = 8
_DOING = "capturing the state"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What a rank holds.

    `keys` are the keys that may differ by rank; each comes with its shape and type, and with how it
    is held. `alike` is what has to be the same on every rank: a text for each object.
    """

    keys: Mapping[str, tuple[str, str]]
    alike: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """A rank's place among those with the same keys.

    `ranks` hold the same keys, in order; `foreign` are keys that belong to ranks with other keys.
    """

    ranks: tuple[int, ...]
    foreign: frozenset[str] = frozenset()


_KeyDigests = tuple[bytes, tuple[tuple[str, bytes], ...]]
"""Digests of `KeyFacts`: of all keys together, and of each object that has to be alike."""


class KeyAgreement:
    """Lets the ranks of a group agree on their shares; keeps the last agreement."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._seen: tuple[bytes, ...] = ()
        self._share = KeyShare(ranks=(0,))

    def agree_on_key_share(self, described: Part[KeyFacts]) -> KeyShare:
        """Return this rank's share; collective. A rank that has a problem hands that in.

        Raises the problem of one rank on every rank, and StateError if ranks hold different things
        where they must not.
        """
        everyone = self._group.gather(_digest_facts(described))
        problem = find_main_problem(everyone)
        if problem is not None:
            raise problem.to_error(_DOING)
        facts = described.value_or_raise(_DOING)
        told = [statement.value_or_raise(_DOING) for statement in everyone]
        _refuse_unlike_objects([alike for _, alike in told])
        seen = tuple(keys for keys, _ in told)
        if seen != self._seen:
            self._share, self._seen = self._divide_keys_among_ranks(facts, seen), seen
        return self._share

    def _divide_keys_among_ranks(self, facts: KeyFacts, seen: tuple[bytes, ...]) -> KeyShare:
        mine = seen[self._group.rank]
        ranks = tuple(rank for rank, one in enumerate(seen) if one == mine)
        if len(ranks) == len(seen):
            return KeyShare(ranks=ranks)
        hashes = {_hash_text(key): key for key in facts.keys}
        foreign: set[str] = set()
        problems = []
        for first in sorted({seen.index(value) for value in seen}):
            table = self._group.call_on_rank(first, lambda: _hash_keys_and_shapes(facts)).value_or_raise(
                _DOING
            )
            if first < ranks[0]:
                shared = {hashes[one]: shape for one, shape in table.items() if one in hashes}
                foreign |= shared.keys()
                problems += [
                    _differing_shape_error(key, facts.keys[key][0], first)
                    for key, shape in shared.items()
                    if shape != _hash_text(facts.keys[key][0])
                ]

        def raise_first() -> None:
            if problems:
                raise problems[0]

        found = find_main_problem(self._group.call_on_every_rank(raise_first))
        if found is not None:
            raise found.to_error(_DOING)
        return KeyShare(ranks=ranks, foreign=frozenset(foreign))


def _digest_facts(described: Part[KeyFacts]) -> Part[_KeyDigests]:
    facts = described.value
    if facts is None:
        return Part(problem=described.problem)
    lines = (f"{key} {shape} {held}" for key, (shape, held) in sorted(facts.keys.items()))
    keys = hashlib.sha256("\n".join(lines).encode()).digest()
    return Part(value=(keys, tuple((name, _hash_text(one)) for name, one in facts.alike.items())))


def _hash_keys_and_shapes(facts: KeyFacts) -> dict[bytes, bytes]:
    return {_hash_text(key): _hash_text(shape) for key, (shape, _) in facts.keys.items()}


def _hash_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def _refuse_unlike_objects(everyone: list[tuple[tuple[str, bytes], ...]]) -> None:
    for rank, one in enumerate(everyone):
        if one != everyone[0]:
            unlike = sorted({name for name, _ in {*one} ^ {*everyone[0]}})
            raise StateError(
                f"{' and '.join(unlike) or 'the order of objects'} on rank {rank}: the names, "
                "shapes or types of its tensors, or the groups of its parameters, are not those of "
                "rank 0",
                hint="register the same objects on every rank; only models, and optimizers of "
                "registered models, may differ by rank",
            )


def _differing_shape_error(key: str, shape: str, other: int) -> StateError:
    return StateError(
        f"{key} is {shape} on this rank, but not on rank {other}",
        hint="a tensor has the same shape and type on every rank that has it; build what is "
        "registered in the same way, and name the parameters of pipeline stages by their place in "
        "the whole model",
    )
