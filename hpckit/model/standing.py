"""How a run stands when its launch is resumed: submitted again, or left alone, and why.

Responsible for these terms; it must not choose (planning.recovery.resume does), nor put them into
words (report.standing does).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """What a resume makes of a run.

    `resumable`: it is submitted again. All others are left alone: `waiting` and `running` are under
    way, and so is `unsettled`, which Slurm may start again by itself; of `unconfirmed` it is not
    known whether Slurm accepted it; `cancelled` was not asked for; `spent` has used up its budgets;
    `blocked` follows a run that is left alone, `detached` one that is not among those chosen.
    """

    resumable = "resumable"
    completed = "completed"
    waiting = "waiting"
    running = "running"
    unsettled = "unsettled"
    unconfirmed = "unconfirmed"
    cancelled = "cancelled"
    spent = "spent"
    blocked = "blocked"
    detached = "detached"

    @property
    def under_way(self) -> bool:
        """Whether the run may still get further by itself."""
        return self in _UNDER_WAY


_UNDER_WAY = frozenset({Standing.waiting, Standing.running, Standing.unsettled})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A standing with what it refers to.

    `detail` is why budgets are spent, or why an earlier stage did not complete; `follows` the run
    that a detached one waits for.
    """

    standing: Standing
    detail: str = ""
    follows: int | None = None
