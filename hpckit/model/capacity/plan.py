"""What a plan says of a training: bytes by component, seconds, watts, what it comes to. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.model.capacity.calibration import Calibration
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.capacity.launch_words import LaunchWords
from hpckit.model.capacity.parts import MemoryParts, StepTime
from hpckit.model.capacity.setup import TrainingSetup
from hpckit.model.parallel.layout import Layout


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
    `calibration` is what predictions follow, besides the formulas. `defaults` are the options that
    decide on batch and training, and that nobody chose.
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
    calibration: Calibration | None = None
    unknown: str = ""
    defaults: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether what is expected is within a GPU's memory."""
        return self.memory.expected <= self.gpu.memory
