"""What was measured of a run, and how far predictions for it are off. Pure."""

from __future__ import annotations

from hpckit.model.capacity.parts import MemoryParts, StepTime
from hpckit.model.capacity.setup import NumberType, Recomputation
from hpckit.model.parallel.layout import Layout
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What a run on GPUs did: `step_s` is the mean of its steps, without saves.

    `gpu` is the driver's name of its GPUs, `memory_bytes` the most that was used of one. `batch` is
    the samples of a step of all ranks, which each data rank computed in `microbatches` parts. None
    is what the run does not tell.
    """

    name: str
    step_s: float
    layout: Layout
    gpu: str = ""
    batch: int | None = None
    microbatches: int = 1
    memory_bytes: int | None = None
    parameters: int | None = None
    precision: NumberType = NumberType.fp32
    recompute: Recomputation = Recomputation.none


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured of a run over what is predicted for it: of a step, and of its memory.

    States are known exactly, so that `memory_ratio` is of the rest: activations, logits, buffers
    and fragmentation. None if memory was not measured, or was less than the states.
    """

    run: str
    step_s: float
    predicted_step_s: float
    memory_bytes: int | None = None
    predicted_memory_bytes: float | None = None
    memory_ratio: float | None = None

    @property
    def step_ratio(self) -> float:
        """How many times as long as predicted a step took."""
        return self.step_s / self.predicted_step_s

    def time(self, predicted: StepTime) -> StepTime:
        """Return a predicted time as the run makes one expect it."""
        ratio = self.step_ratio
        return StepTime(
            compute=ratio * predicted.compute,
            exposed=ratio * predicted.exposed,
            bubble=ratio * predicted.bubble,
            optimizer=ratio * predicted.optimizer,
        )

    def memory(self, predicted: MemoryParts) -> MemoryParts:
        """Return predicted memory as the run makes one expect it."""
        ratio = 1.0 if self.memory_ratio is None else self.memory_ratio
        return replace(
            predicted,
            activations=ratio * predicted.activations,
            logits=ratio * predicted.logits,
            buffers=ratio * predicted.buffers,
            fragmentation=ratio * predicted.fragmentation,
        )
