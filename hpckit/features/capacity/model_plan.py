"""What a plan says of a training: bytes by component, seconds, watts, what it comes to. Pure."""

from __future__ import annotations

from hpckit.features.capacity.model_setup import GpuSpec, NumberType, Recomputation, TrainingSetup
from hpckit.model.parallel.layout import Layout
from hpckit.values import dataclass, field_names, replace


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

    def correct_step_time(self, predicted: StepTime) -> StepTime:
        """Return a predicted time as the run makes one expect it."""
        parts = field_names(predicted)
        return StepTime(**{name: self.step_ratio * getattr(predicted, name) for name in parts})

    def correct_memory(self, predicted: MemoryParts) -> MemoryParts:
        """Return predicted memory as the run makes one expect it."""
        ratio = 1.0 if self.memory_ratio is None else self.memory_ratio
        rest = ("activations", "logits", "buffers", "fragmentation")
        return replace(predicted, **{name: ratio * getattr(predicted, name) for name in rest})


_CONTEXT_LOW, _CONTEXT_HIGH = 0.6, 1.6
_FRAGMENTED_MORE = 0.11
_ACTIVATIONS_LOW, _ACTIVATIONS_HIGH = 0.85, 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes per GPU by component, at the moment of a step that needs the most."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0
    context: float = 0.0
    fragmentation: float = 0.0

    @property
    def tensor_bytes(self) -> float:
        """The bytes of all tensors: what is no CUDA context and no gap between them."""
        return self.states + self.activations + self.logits + self.buffers

    @property
    def expected(self) -> float:
        """The sum."""
        return self.tensor_bytes + self.context + self.fragmentation

    @property
    def states(self) -> float:
        """What is known exactly: weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def low(self) -> float:
        """What it takes if nothing is kept that need not be."""
        return self.states + _ACTIVATIONS_LOW * (self.activations + self.logits) + _CONTEXT_LOW * self.context

    @property
    def high(self) -> float:
        """What it takes with the copies that common code keeps, and fragments."""
        working = _ACTIVATIONS_HIGH * (self.activations + self.logits) + self.buffers
        fragmentation = self.fragmentation + _FRAGMENTED_MORE * working
        return self.states + working + fragmentation + _CONTEXT_HIGH * self.context


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
class LaunchWords:
    """The overrides of a setup; `limits` are why hpckit does not run it, empty if it does.

    `own` is what the user's code has to do, as no key of hpckit does it. `unplaced` is why the
    overrides do not say nodes and GPUs, empty if they do. `complete` is whether the overrides say
    what is run, too. `options` are those of `hpckit plan` that choose this setup.
    """

    overrides: tuple[str, ...]
    limits: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    unplaced: str = ""
    complete: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """What a step of `step_s` seconds comes to; `mfu` and `hfu` are shares of the GPUs' peak.

    Both count attention between all positions. `mfu_masked` counts half of it, as a causal mask
    leaves it; `attention_share` is the part of the model's operations that attention is.
    """

    step_s: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    mfu_masked: float
    attention_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """How many times as long as predicted published steps took, at least and at most; `said` so."""

    low: float
    high: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """Watts at full load: of the GPUs alone, of their nodes, and of the facility.

    `gpu_w` and `node_w` are those of one GPU, and of one with its part of the node, which
    `node_source` explains; `clock` is the rate that a power cap leaves a GPU, 1 without one.
    """

    gpus: float
    nodes: float
    facility: float
    gpu_w: float = 0.0
    node_w: float = 0.0
    node_source: str = ""
    clock: float = 1.0
    pue: float = 1.0


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
    `calibration` is what predictions follow, besides the formulas; `experience` how long published
    runs took where a step is predicted without one. `moment` is the name of that in a step which
    needs the memory. `defaults` are the options of batch and training that the user did not
    choose; `remarks` what else should be known of the plan.
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
    experience: Experience | None = None
    unknown: str = ""
    moment: str = ""
    defaults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether what is expected is within a GPU's memory.

        None if only states are known, and they are.
        """
        within = self.memory.expected <= self.gpu.memory
        return None if within and self.setup is None else within

    @property
    def training_days_range(self) -> tuple[float, float] | None:
        """Days of the training, if steps take as long as published ones at least and at most."""
        if self.bill is None or self.experience is None:
            return None
        return self.bill.days * self.experience.low, self.bill.days * self.experience.high


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayouts:
    """What a search found: layouts that fit, the fastest first, and the plan of the fastest.

    `smaller` are those of them that need less memory than all faster ones. If none fits, `smallest`
    is what needs the least memory, and `help` what would make it fit.
    """

    fitting: tuple[PlannedSetup, ...] = ()
    smaller: tuple[PlannedSetup, ...] = ()
    best: CapacityPlan | None = None
    smallest: PlannedSetup | None = None
    help: tuple[str, ...] = ()
