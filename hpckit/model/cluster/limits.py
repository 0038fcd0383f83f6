"""What a cluster accepts of one user, as far as it is known. Null means no limit, or not known.

Responsible for these few terms; it must not know how they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLimits:
    """How many jobs may be handed in, counted as Slurm does: every element of an array is one.

    `array_index` is the largest index plus one (MaxArraySize), `array_tasks` how many elements one
    array may have (SchedulerParameters max_array_tasks), `queued` how many jobs of the user may be
    pending or running at a time (MaxSubmitJobs of association and QOS), `jobs` how many of all
    users the controller holds (MaxJobCount).
    """

    array_index: int | None = None
    array_tasks: int | None = None
    queued: int | None = None
    jobs: int | None = None

    @property
    def array(self) -> int | None:
        """How many elements one array may have; 0 where there can be no arrays."""
        known = [limit for limit in (self.array_index, self.array_tasks) if limit is not None]
        return min(known, default=None)


NO_LIMITS = SubmitLimits()
