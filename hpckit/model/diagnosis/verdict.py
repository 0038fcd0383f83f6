"""What a run's time was lost to: verdicts, each a number with its consequence and a remedy.

Also ranks that are slower than their peers. planning.diagnosis finds both; this module only names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hpckit.model.parallel.layout import format_rank
from hpckit.model.telemetry.rank_steps import TimedPhase
from hpckit.model.telemetry.usage import EnergyBill, RunTelemetry
from hpckit.values import dataclass, field

EvidenceValue = float | int | str | None
"""A value of a verdict's evidence, as JSON has it."""


class VerdictKind(StrEnum):
    """What holds a run back, or what it was given and did not use."""

    input_bound = "input_bound"
    """ranks wait for data"""
    communication_bound = "communication_bound"
    """all ranks wait in collectives"""
    compute_bound = "compute_bound"
    """the GPUs' compute units are busy: nothing is wrong"""
    memory_bound = "memory_bound"
    """the bandwidth of the GPUs' memory is used up"""
    launch_bound = "launch_bound"
    """the GPUs wait for the program to give them work"""
    gpu_idle = "gpu_idle"
    """GPUs are allocated and not used"""
    throttled = "throttled"
    """GPUs lower their clocks, for heat or at the power limit"""
    straggler = "straggler"
    """a rank is slower than its peers, which wait for it"""
    checkpoint_overhead = "checkpoint_overhead"
    """training stands still for saves"""
    restarts = "restarts"
    """time went into restarts, and into steps that were repeated"""
    overallocated = "overallocated"
    """more CPUs, memory or time were asked for than were used"""


class VerdictSeverity(StrEnum):
    """How much a verdict matters, worst first."""

    high = "high"
    """a quarter of the run's time, or more"""
    medium = "medium"
    """a tenth, or more"""
    low = "low"
    """less than a tenth; or it costs others more than this run"""
    info = "info"
    """nothing is wrong"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One verdict. `message` has the number and its consequence, `remedy` what to do.

    `loss` is the share (0 to 1) of the run's time on its nodes that the remedy could give back at
    most; 0 if that is not known, or if something else than time is lost. `evidence` has the
    measured values, by names that end in their unit (`_s`, `_bytes`, `_share`).
    """

    kind: VerdictKind
    severity: VerdictSeverity
    message: str
    remedy: str
    loss: float = 0.0
    evidence: Mapping[str, EvidenceValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank whose own work takes longer than that of its peers.

    `slower_by` is a fraction: 0.3 is 30 % longer than the peers' median. `peers_s` are their seconds of own
    work a step, `own_s` is longer than that by `slower_by`, and `step_s` are those of a whole step: medians
    of the last `judged` windows. It was slow in `windows` of these. `gpu` is the uuid of its GPU, null
    without one. `place` is where the rank is in the layout, in words; empty in plain data parallelism.
    """

    rank: int
    node: str
    gpu: str | None
    slower_by: float
    own_s: float
    peers_s: float
    step_s: float
    windows: int
    judged: int
    place: str = ""

    @property
    def rank_name(self) -> str:
        """The rank with its place in the layout."""
        return format_rank(self.rank, self.place)

    @property
    def lost_step_share(self) -> float:
        """The share of a step that the others wait for it, at most."""
        return min(max(self.own_s - self.peers_s, 0.0) / self.step_s, 1.0) if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """What a run used of its nodes, what that says, and what it comes to.

    `verdicts` are sorted, worst first, and `stragglers` by rank. `gpus_asked` is how many GPUs it
    asked for, `phases` what its own code timed.
    """

    verdicts: tuple[Verdict, ...]
    stragglers: tuple[Straggler, ...]
    telemetry: RunTelemetry
    energy: EnergyBill
    gpus_asked: int = 0
    phases: tuple[TimedPhase, ...] = ()

    @property
    def lacks_gpu_measurements(self) -> bool:
        """Whether it asked for GPUs, and none of them was measured."""
        return self.gpus_asked > 0 and not self.energy.energy.gpu_s
