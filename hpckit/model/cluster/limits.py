"""The limits of a cluster on one user's jobs, as far as they are known.

Null means no limit, or unknown.
"""

from __future__ import annotations

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLimits:
    """How many jobs may be submitted. Every element of an array is one job, as in Slurm.

    `array_index` is the largest index plus one (MaxArraySize). `array_tasks` is how many elements
    one array may have (SchedulerParameters max_array_tasks). `queued` is how many jobs of the user
    may be pending or running at a time (MaxSubmitJobs of association and QOS). `jobs` is how many
    jobs of all users the controller holds (MaxJobCount).
    """

    array_index: int | None = None
    array_tasks: int | None = None
    queued: int | None = None
    jobs: int | None = None

    @property
    def array(self) -> int | None:
        """How many elements one array may have; 0 if arrays are not possible."""
        known = [limit for limit in (self.array_index, self.array_tasks) if limit is not None]
        return min(known, default=None)


NO_LIMITS = SubmitLimits()
