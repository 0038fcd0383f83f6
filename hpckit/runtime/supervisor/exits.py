"""The exit records of one round: which ranks have ended, how, and which are still missing.

Keeps and records them, at a cost per record that does not grow with their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from hpckit.model import events
from hpckit.model.failure import ExitReason, RankExit
from hpckit.model.ranges import ranges
from hpckit.planning.recovery.ends import guilty_rank
from hpckit.runtime.clock import now
from hpckit.values import dataclass, field

TOLD_SINGLY = 32
"""Number of rank ends of a round that get their own event.

If one of 8000 ranks fails, the other events would say the same 8000 times, a kilobyte each, and
every reader of the record reads all of it.
"""

_ALONE = (
    "did not connect to each other: if they train one model, each trained it alone and wrote the "
    "same files. To train together, they form a group (torch.distributed.init_process_group(), "
    "hpckit.attach(), the trainer's strategy); for one process: resources.nodes=1 "
    "resources.tasks_per_node=1; if each does its own part, by RANK, nothing is wrong"
)

_Alike = tuple[ExitReason, int | None, str | None, str | None, bool]


@dataclass(slots=True, kw_only=True)
class RankExits:
    """The exit records of a round with `world_size` ranks. `failed` is whether any rank failed."""

    round: int
    world_size: int
    tasks_per_node: int
    record: Callable[[events.Event], None]
    failed: bool = field(default=False, init=False)
    _exits: dict[int, RankExit] = field(default_factory=dict, init=False)
    _owed: set[int] = field(init=False)
    _alone_s: list[float] = field(default_factory=list, init=False)
    _untold: dict[int, RankExit] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._owed = set(range(self.world_size))

    def __len__(self) -> int:
        return len(self._exits)

    def __contains__(self, rank: int) -> bool:
        return rank in self._exits

    def take(self, exit_: RankExit, alone_s: float = 0.0) -> None:
        """Add the record of a rank that has ended, and for how long it met no other, if so."""
        self._alone_s.append(alone_s)
        self._exits[exit_.rank] = exit_
        self._owed.discard(exit_.rank)
        self.failed = self.failed or exit_.failed
        if len(self._exits) <= TOLD_SINGLY:
            self._tell(exit_)
        else:
            self._untold[exit_.rank] = exit_

    def lose(self, place: int) -> None:
        """Expect no more records from the node at this place of the round."""
        first = place * self.tasks_per_node
        self._owed.difference_update(range(first, first + self.tasks_per_node))

    @property
    def complete(self) -> bool:
        """Whether every rank has ended."""
        return len(self._exits) == self.world_size

    @property
    def accounted(self) -> bool:
        """Whether every rank has ended, or its node is lost."""
        return not self._owed

    def missing(self) -> Sequence[int]:
        """Return the ranks without a record, in order."""
        return [rank for rank in range(self.world_size) if rank not in self._exits]

    def in_order(self) -> tuple[RankExit, ...]:
        """Return all records, by rank."""
        return tuple(self._exits[rank] for rank in sorted(self._exits))

    def settle(self) -> None:
        """Record the remaining ends: the rank that failed first alone, the others in groups."""
        guilty = guilty_rank(self.in_order()) if self._untold else None
        if guilty is not None and self._untold.pop(guilty.rank, None) is not None:
            self._tell(guilty)
        alike: dict[_Alike, list[int]] = defaultdict(list)
        for rank, exit_ in self._untold.items():
            how = (exit_.reason, exit_.code, exit_.signal, exit_.exception, exit_.stopped)
            alike[how].append(rank)
        for (reason, code, signal, exception, stopped), ranks in alike.items():
            self.record(
                events.RanksExited(
                    at=now(),
                    round=self.round,
                    ranks=ranges(ranks),
                    count=len(ranks),
                    reason=reason,
                    code=code,
                    signal=signal,
                    exception=exception,
                    stopped=stopped,
                )
            )
        self._untold.clear()
        # Ranks of which one runs for less than half as long as another do different things.
        if self.complete and not self.failed and 2 * min(self._alone_s) > max(self._alone_s):
            self.record(events.Warned(at=now(), message=f"its {self.world_size} ranks {_ALONE}"))

    def _tell(self, exit_: RankExit) -> None:
        self.record(events.RankExited(at=now(), round=self.round, exit=exit_))
