"""What a plan says of a training: bytes by component, seconds, watts, what it comes to. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.capacity.launch_words import LaunchWords
from hpckit.model.capacity.setup import TrainingSetup
from hpckit.model.parallel.layout import Layout

_CONTEXT_LOW, _CONTEXT_HIGH = 0.6, 1.6
_FRAGMENTED_HIGH = 0.15
_ACTIVATIONS_LOW, _ACTIVATIONS_HIGH = 0.85, 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes per GPU by component."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0
    context: float = 0.0
    fragmentation: float = 0.0

    @property
    def expected(self) -> float:
        """The sum."""
        return float(sum(getattr(self, one.name) for one in fields(self)))

    @property
    def states(self) -> float:
        """What is known exactly: weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def low(self) -> float:
        """What it takes if nothing is kept that need not be."""
        return (
            self.states
            + _ACTIVATIONS_LOW * (self.activations + self.logits)
            + _CONTEXT_LOW * self.context
        )

    @property
    def high(self) -> float:
        """What it takes with the copies that common code keeps, and fragments."""
        working = _ACTIVATIONS_HIGH * (self.activations + self.logits) + self.buffers
        return self.states + (1 + _FRAGMENTED_HIGH) * working + _CONTEXT_HIGH * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by what they go to. `bubble`: a pipeline's ranks wait for each other.

    `exposed` is communication that nothing runs beside.
    """

    compute: float
    exposed: float
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.compute + self.exposed + self.bubble + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """What a step of `step_s` seconds comes to; `mfu` and `hfu` are shares of the GPUs' peak."""

    step_s: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """Watts: of the GPUs alone, of their nodes, and of the facility."""

    gpus: float
    nodes: float
    facility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBill:
    """What a whole training comes to. `lost_share` is what failures and saves add to its time."""

    steps: int
    days: float
    gpu_hours: float
    energy_j: float
    lost_share: float
    cost: float | None = None
    carbon_kg: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSetup:
    """A setup with what it needs, and how it is launched; `days` are those of the training."""

    setup: TrainingSetup
    memory: MemoryParts
    time: StepTime
    launch: LaunchWords
    days: float | None = None

    @property
    def fits(self) -> bool:
        """Whether what is expected is within the GPU's memory."""
        return self.memory.expected <= self.setup.gpu.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What a training needs. Of a model of which only its size is known, most is None.

    `unknown` says then what would be needed. `layout` is that of a model that was counted.
    """

    gpu: GpuSpec
    gpus: int
    parameters: int
    memory: MemoryParts
    power: PowerDraw
    setup: TrainingSetup | None = None
    time: StepTime | None = None
    rates: StepRates | None = None
    bill: TrainingBill | None = None
    tokens: float | None = None
    launch: LaunchWords | None = None
    layout: Layout | None = None
    unknown: str = ""

    @property
    def fits(self) -> bool:
        """Whether what is expected is within a GPU's memory."""
        return self.memory.expected <= self.gpu.memory
