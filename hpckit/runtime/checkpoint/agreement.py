"""What ranks hold in common: which rank writes a key that several have.

With pipeline stages ranks hold different keys. Ranks with the same keys form a part; a key that
several parts have belongs to the first of them, the one with the lowest rank, and has the same
shape and type in all. Every save exchanges a few digests per rank; only when these have changed,
one rank of each part sends its keys, in some 20 bytes each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.group import Group, Part, first_problem
from hpckit.values import dataclass

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

    def agree(self, described: Part[KeyFacts]) -> KeyShare:
        """Return this rank's share; collective. A rank that has a problem hands that in.

        Raises the problem of one rank on every rank, and StateError if ranks hold different things
        where they must not.
        """
        digests = None if described.value is None else _digests(described.value)
        own: Part[_KeyDigests] = Part(value=digests, problem=described.problem)
        everyone = self._group.gather(own)
        problem = first_problem(everyone)
        if problem is not None:
            raise problem.error(_DOING)
        facts = described.result(_DOING)
        told = [statement.result(_DOING) for statement in everyone]
        _check_alike([alike for _, alike in told])
        seen = tuple(keys for keys, _ in told)
        if seen != self._seen:
            self._share, self._seen = self._divide(facts, seen), seen
        return self._share

    def _divide(self, facts: KeyFacts, seen: tuple[bytes, ...]) -> KeyShare:
        mine = seen[self._group.rank]
        ranks = tuple(rank for rank, one in enumerate(seen) if one == mine)
        if len(ranks) == len(seen):
            return KeyShare(ranks=ranks)
        hashes = {_hash(key): key for key in facts.keys}
        foreign: set[str] = set()
        problems = []
        for first in sorted({seen.index(value) for value in seen}):
            table = self._group.one(first, lambda: _table(facts)).result(_DOING)
            if first < ranks[0]:
                shared = {hashes[one]: shape for one, shape in table.items() if one in hashes}
                foreign |= shared.keys()
                problems += [
                    _unlike_key(key, facts.keys[key][0], first)
                    for key, shape in shared.items()
                    if shape != _hash(facts.keys[key][0])
                ]
        found = first_problem(self._group.each(lambda: _raise_first(problems)))
        if found is not None:
            raise found.error(_DOING)
        return KeyShare(ranks=ranks, foreign=frozenset(foreign))


def _digests(facts: KeyFacts) -> _KeyDigests:
    lines = (f"{key} {shape} {held}" for key, (shape, held) in sorted(facts.keys.items()))
    keys = hashlib.sha256("\n".join(lines).encode()).digest()
    return keys, tuple((name, _hash(one)) for name, one in facts.alike.items())


def _table(facts: KeyFacts) -> dict[bytes, bytes]:
    return {_hash(key): _hash(shape) for key, (shape, _) in facts.keys.items()}


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def _check_alike(everyone: list[tuple[tuple[str, bytes], ...]]) -> None:
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


def _unlike_key(key: str, shape: str, other: int) -> StateError:
    return StateError(
        f"{key} is {shape}, which it is not on rank {other}",
        hint="a tensor has the same shape and type on every rank that has it; build what is "
        "registered in the same way, and name the parameters of pipeline stages by their place in "
        "the whole model",
    )


def _raise_first(problems: list[StateError]) -> None:
    if problems:
        raise problems[0]
