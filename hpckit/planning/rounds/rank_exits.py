"""The exit records of a round's ranks, and the events that tell of them. Pure values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from hpckit.model import events
from hpckit.model.counted import format_ranges
from hpckit.model.failure import RankExit
from hpckit.planning.recovery.ends import find_rank_that_failed_first
from hpckit.values import dataclass, field, replace

TOLD_SINGLY = 32
"""Number of rank ends of a round that get their own event.

If one of 8000 ranks fails, the other events would say the same 8000 times, a kilobyte each, and
every reader of the record reads all of it.
"""

_ALONE = (
    "did not connect to each other: if they train one model, each trained it alone and wrote the "
    "same files. To train together, they form a group (torch.distributed.init_process_group(), "
    'hpckit.attach(), Lightning\'s Trainer(strategy="ddp", num_nodes=..., devices=...)); for one process: '
    "resources.nodes=1 resources.tasks_per_node=1; if each does its own part, by RANK, nothing is wrong"
)
_BLOCK = 128
"""Adding a value for one of 8000 ranks copies this many, and not all of them."""

_HOW = ("reason", "code", "signal", "exception", "stopped")
"""What ranks that are told of together have in common."""
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class ByRank(Generic[Told]):
    """What some ranks have told. `blocks` holds it by rank, some neighbours together."""

    blocks: Mapping[int, Mapping[int, Told]] = field(default_factory=dict)
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, rank: int) -> bool:
        return rank in self.blocks.get(rank // _BLOCK, ())

    def with_value(self, rank: int, told: Told) -> ByRank[Told]:
        """Return these values, and that of one more rank."""
        block = {**self.blocks.get(rank // _BLOCK, {}), rank: told}
        return ByRank({**self.blocks, rank // _BLOCK: block}, self.count + (rank not in self))

    def items(self) -> list[tuple[int, Told]]:
        """Return the ranks with what they told, in their order."""
        return sorted(
            (item for block in self.blocks.values() for item in block.items()), key=lambda item: item[0]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExits:
    """The exit records of a round with `world_size` ranks, as far as they have come."""

    world_size: int
    ended: ByRank[tuple[int, RankExit]] = field(default_factory=ByRank)
    """By rank: how many others had ended before, and the record."""
    alone_least_s: float = math.inf
    alone_most_s: float = 0.0
    """For how long ranks that have ended met no other."""

    def __len__(self) -> int:
        return len(self.ended)

    def __contains__(self, rank: int) -> bool:
        return rank in self.ended

    def with_exit(self, exit_: RankExit, alone_s: float = 0.0) -> RankExits:
        """Return these records and that of a rank that has ended."""
        return replace(
            self,
            ended=self.ended.with_value(exit_.rank, (len(self.ended), exit_)),
            alone_least_s=min(self.alone_least_s, alone_s),
            alone_most_s=max(self.alone_most_s, alone_s),
        )

    @property
    def is_complete(self) -> bool:
        """Whether every rank has ended."""
        return len(self.ended) == self.world_size

    def list_missing_ranks(self) -> Sequence[int]:
        """Return the ranks without a record, in order."""
        return [rank for rank in range(self.world_size) if rank not in self.ended]

    def list_by_rank(self) -> tuple[RankExit, ...]:
        """Return all records, by rank."""
        return tuple(exit_ for _, (_, exit_) in self.ended.items())

    def list_unrecorded_exit_events(self, round_: int, at: datetime) -> list[events.Event]:
        """Return the events of the ends that were not told singly, when the round is over.

        The rank that failed first has one alone, the others are told in groups. At last comes a
        warning if no rank has met another.
        """
        numbered = sorted(told for _, told in self.ended.items())
        later = [exit_ for number, exit_ in numbered if number >= TOLD_SINGLY]
        found: list[events.Event] = []
        guilty = find_rank_that_failed_first(self.list_by_rank()) if later else None
        if guilty is not None and guilty in later:
            later.remove(guilty)
            found.append(events.RankExited(at=at, round=round_, exit=guilty))
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for exit_ in later:
            alike[tuple(getattr(exit_, name) for name in _HOW)].append(exit_.rank)
        for how, ranks in alike.items():
            told = dict(zip(_HOW, how, strict=True))
            told |= {"at": at, "round": round_, "ranks": format_ranges(ranks), "count": len(ranks)}
            found.append(events.RanksExited(**told))
        # Ranks of which one runs for less than half as long as another do different things.
        failed = any(exit_.failed for _, exit_ in numbered)
        if self.is_complete and not failed and 2 * self.alone_least_s > self.alone_most_s:
            found.append(events.Warned(at=at, message=f"its {self.world_size} ranks {_ALONE}"))
        return found
