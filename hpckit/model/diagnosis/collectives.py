"""What ranks said of their collectives when they stood still, and what follows from it."""

from __future__ import annotations

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCollective:
    """An entry of a rank's flight recorder.

    `sequence` counts the collectives of a group, or its messages between two ranks (`peer` is the
    other one then, null for collectives). `tensor` is what is sent: `float32[1024]`. `waited_s` is
    how long ago the rank entered it, if it is not `finished`. `place` is where in the user's code.
    """

    backend: str
    group: str
    operation: str
    sequence: int
    to_one: bool = False
    peer: int | None = None
    tensor: str = ""
    finished: bool = False
    waited_s: float | None = None
    place: str | None = None


UNNAMED = "?"
"""In the place of members that no message holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How far a rank is in one group: the highest sequence number that it `entered`.

    `ranks` are the group's members as ranges (`0-3, 7`, `0-24:8`): empty if the rank does not know
    them, UNNAMED if that text would be too long for a message.
    """

    backend: str
    group: str
    entered: int
    name: str = ""
    ranks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """What one rank said: its groups, and its latest and unfinished collectives in their order."""

    rank: int
    node: str = ""
    groups: tuple[GroupProgress, ...] = ()
    entries: tuple[RecordedCollective, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWait:
    """The collective in which ranks wait for others.

    `missing` are the ranks that never entered it, `other` those that entered another operation, or
    another size, in its place, `silent` those that said nothing, and `waiting` those that wait in
    it, the first of them for `waited_s` seconds. `culprit` is the one rank that is to blame, null
    if that cannot be told. `words` says all of it.
    """

    operation: str
    sequence: int
    group: str
    backend: str
    tensor: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    culprit: int | None = None
    waited_s: float | None = None
    place: str | None = None
    words: str = ""
