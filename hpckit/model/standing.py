"""What a resume does with a run: submit it again, or leave it alone, and why."""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass


class Standing(StrEnum):
    """What a resume does with a run.

    `resumable` runs are submitted again; all others are left alone. `waiting` and `running` are
    under way, and so is `unsettled`, which Slurm may start again by itself. For `unconfirmed`, it
    is not known whether Slurm accepted it. `cancelled`: the resume does not include cancelled runs.
    `spent` has used up its budgets. `blocked` follows a run that is left alone, `detached` one that
    is not among the chosen runs.
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
        """Whether the run may still make progress by itself."""
        return self in _UNDER_WAY


_UNDER_WAY = frozenset({Standing.waiting, Standing.running, Standing.unsettled})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A standing with its details.

    `detail` says why budgets are spent, or why an earlier stage did not complete; `follows` is the
    run that a detached one waits for.
    """

    standing: Standing
    detail: str = ""
    follows: int | None = None
