"""Which steps are trained at a boundary: a loop may take steps ahead, or add up gradients of many.

The loop came round, but what it asked for may lie in a prefetcher, or in gradients that their
optimizer has not used. Registered optimizers tell. In doubt a step is not done.

Also whether ranks train the same model, each alone, as without DistributedDataParallel. They do if
weights change and no collective runs within steps. In doubt they train together.
"""

from __future__ import annotations

import inspect
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from hpckit.model.counted import format_count
from hpckit.runtime.cpu_group import OWN
from hpckit.runtime.rank.parameters import list_unique_parameters
from hpckit.runtime.tensor_parts import local_shard_of_tensor
from hpckit.values import dataclass, field

_IDLE_S, _WAITING_S = 60.0, 900.0
"""How long steps may be taken, and gradients be added up, before state is saved."""
_MOST_STEPS = 256
"""Steps whose gradients may be added up."""
_MOST_AHEAD = 64
_SHORT_S = 0.01
"""In less than this nothing is trained."""
_WATCHED = 64
"""Parameters of an optimizer whose gradients are watched."""
_LEAST_STEPS = 1000
"""What is looked at before a warning, unless the loop ends sooner. Some average weights rarely."""
_OTHER_WAYS = {"horovod", "mpi4py", "deepspeed", "byteps", "bagua", "hivemind", "torchft", "cupy"}
"""Packages that may connect ranks by other means than torch's process groups."""
_ALONE = (
    "its ranks used no collective in {steps} steps: each trains the same model alone. To train "
    "together: torch.nn.parallel.DistributedDataParallel(model), or run.parallelize(); for one "
    "process: resources.nodes=1 resources.tasks_per_node=1; if each trains a model of its own on "
    "purpose, or they average weights later, nothing is wrong"
)


@dataclass(slots=True, kw_only=True)
class OptimizerWatch:
    """What one optimizer did in a step: whether it got gradients, and used them.

    Gradients that come after a use belong to the next one, unless they are zeroed before: those of
    a discriminator from the loss of its generator. The next step shows which it is.
    """

    got: bool = False
    used: bool = False
    steps: int = 0
    """At how many boundaries in a row gradients have waited for it."""
    since: float = 0.0
    _left: Tensor | None = None
    """The parameter that got a gradient last, after the last use."""
    _mark: _Gradient | None = None
    """What was left at the last boundary, until it is known what becomes of it."""
    _drops: bool = False
    """Whether what was left after a use has been zeroed."""

    def hook_optimizer(self, optimizer: Optimizer) -> None:
        """Hear of its steps, and of gradients of some of its parameters."""
        optimizer.register_step_post_hook(self._note_optimizer_step)
        learning = [
            one
            for group in optimizer.param_groups
            for one in group["params"]
            if one.requires_grad and one.is_leaf
        ]
        for parameter in learning[:: max(len(learning) // _WATCHED, 1)]:
            parameter.register_post_accumulate_grad_hook(self._note_gradient)

    def _note_optimizer_step(self, *_: Any) -> None:
        if self._mark is not None:
            self._drops, self._mark = self._mark.tensor() is None, None
        self.used, self._left = True, None

    def _note_gradient(self, parameter: Tensor) -> None:
        if self._mark is not None:
            self._drops, self._mark = self._mark.was_zeroed(parameter), None
        self.got, self._left = True, parameter

    def end_step_and_return_activity(self) -> bool:
        """Return whether it did anything in this step; begin the next one."""
        worked = self.got or self.used
        if self._left is None or (self.used and self._drops):
            self.steps = 0
        else:
            self.since = self.since if self.steps else time.monotonic()
            self.steps += 1
        if self.used and self._left is not None:
            self._mark = _Gradient.from_parameter(self._left)
        self.got = self.used = False
        return worked

    @property
    def has_waiting_gradients(self) -> bool:
        """Whether it has gradients that it will soon use."""
        return 0 < self.steps <= _MOST_STEPS and time.monotonic() - self.since < _WAITING_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradient:
    """A gradient as it was at a boundary."""

    parameter: Tensor
    tensor: weakref.ref[Tensor]
    version: int

    @classmethod
    def from_parameter(cls, parameter: Tensor) -> _Gradient | None:
        """Return that of a parameter; None without one."""
        gradient = parameter.grad
        if gradient is None:
            return None
        return cls(parameter=parameter, tensor=weakref.ref(gradient), version=_gradient_version(gradient))

    def was_zeroed(self, added: Tensor) -> bool:
        """Return whether it was zeroed before a parameter got its next gradient."""
        gradient = self.tensor()
        if gradient is None:
            return True
        in_place = added is self.parameter and added.grad is gradient
        return _gradient_version(gradient) != self.version + in_place


def _gradient_version(gradient: Tensor) -> int:
    return local_shard_of_tensor(gradient)._version  # noqa: SLF001  # in torch's documentation


@dataclass(slots=True)
class LoneRanks:
    """Watches the steps of a loop on one rank, up to the first collective: then nothing more.

    `own` counts hpckit's collectives in the user's groups; without `warn` nothing is watched.
    """

    registered: Iterable[Any] = ()
    warn: Callable[[str], None] | None = None
    own: Callable[[], int] = lambda: 0
    _steps: int = field(default=0, init=False)
    _before: int = field(default=0, init=False)
    _versions: list[int] = field(default_factory=list, init=False)

    def remember_state_before_step(self) -> None:
        """Note what was before a step."""
        if self.warn is not None:
            self._versions = self._versions if self._steps else self._read_weight_versions()
            self._steps, self._before = self._steps + 1, self._count_user_collectives()

    def warn_if_ranks_train_alone(self, *, last: bool = False) -> None:
        """Judge what came since; warn if it is the `last` step, or there have been enough."""
        if self.warn is None or not self._steps:
            return
        if self._count_user_collectives() != self._before or not _OTHER_WAYS.isdisjoint(sys.modules):
            self.warn = None
        elif last or self._steps >= _LEAST_STEPS:
            if self._read_weight_versions() != self._versions:
                self.warn(_ALONE.format(steps=self._steps))
            self.warn = None

    def _read_weight_versions(self) -> list[int]:
        learn = [found for found in list_unique_parameters(self.registered) if found.requires_grad]
        alone = [found for found in learn if not (found.is_cpu and found.is_shared())]  # type: ignore[no-untyped-call]
        return [local_shard_of_tensor(found)._version for found in alone]  # noqa: SLF001  # documented

    def _count_user_collectives(self) -> int:
        try:
            backends: set[Any] = {
                group._get_backend(kind)  # noqa: SLF001
                for group in dist.distributed_c10d._world.pg_map  # noqa: SLF001  # there is no public name
                if group.group_desc != OWN
                for kind in group._device_types  # noqa: SLF001
            }
            counts = [backend._get_sequence_number_for_group() for backend in backends]  # noqa: SLF001
        except (AttributeError, RuntimeError):  # another torch, or a backend that counts none
            counts = []
        self.warn = self.warn if counts else None
        return int(sum(counts)) - self.own()


@dataclass(slots=True, kw_only=True)
class TrainedSteps:
    """Follows the registered optimizers of one loop from boundary to boundary.

    `open`: the state holds a part of what some steps do, so that it must be neither saved nor left
    here. `lead` is how many steps the loop has always taken and not yet trained. `warn` gets a
    text, once. `worked` is set by other signs that a step is worked on. Without a registered
    optimizer of torch all steps that were taken count as trained.
    """

    warn: Callable[[str], None] = lambda _text: None
    alone: LoneRanks = field(default_factory=LoneRanks)
    worked: bool = field(default=False, init=False)
    open: bool = field(default=False, init=False)
    lead: int = field(default=0, init=False)
    _optimizers: list[OptimizerWatch] = field(default_factory=list, init=False)
    _taken_at: float | None = field(default=None, init=False)
    _knows_lead: bool = field(default=False, init=False)
    _idle: int = field(default=0, init=False)
    """Steps in a row in which nothing was done."""
    _first_idle: int | None = field(default=None, init=False)
    _in_hand: bool = field(default=False, init=False)
    """Whether the loop had one of these steps itself, and not only a prefetcher."""
    _worked_at: float = field(default_factory=time.monotonic, init=False)
    _warned: bool = field(default=False, init=False)
    """Whether it has warned of gradients that wait at each boundary."""

    def watch_optimizers(self, objects: Iterable[Any]) -> None:
        """Follow the optimizers among these objects."""
        for value in objects:
            if isinstance(value, Optimizer):
                self._optimizers.append(OptimizerWatch())
                self._optimizers[-1].hook_optimizer(value)

    def record_step_taken(self) -> None:
        """Note that the loop takes a step now."""
        self.alone.remember_state_before_step()
        self._taken_at = time.monotonic()

    def update_trained_steps(self, step: int) -> None:
        """Judge the boundary at which the loop asks for another step than this one, which it took.

        A step that is not worked on for a while counts as done if the loop itself has its number.
        """
        self.alone.warn_if_ranks_train_alone()
        if self._taken_at is None or not self._optimizers:
            return
        now = time.monotonic()
        # A list: the step of each optimizer ends, also after the first that worked.
        each = [optimizer.end_step_and_return_activity() for optimizer in self._optimizers]
        worked = any(each) or self.worked
        self.worked = False
        waits = any(optimizer.has_waiting_gradients for optimizer in self._optimizers)
        waiting_long = (
            optimizer
            for optimizer in self._optimizers
            if optimizer.steps > 0 and not optimizer.has_waiting_gradients
        )
        if not self._warned and any(waiting_long):
            self._warned = True
            self.warn(
                "for a long time, gradients were still unused at the end of each step: state "
                "is saved without them, and a restart loses them; end a step after optimizer.step()"
            )
        in_hand = worked or _is_step_in_a_variable(step)
        if worked or (in_hand and now - self._taken_at >= _SHORT_S):
            ahead = not self._learn_prefetch_lead()
            self._idle, self._worked_at = 0, now
        else:
            self._idle += 1
            self._in_hand |= in_hand
            self._knows_lead |= self._first_idle is not None  # several steps at once are no lead
            ahead = now - self._worked_at < _IDLE_S and self._idle <= _MOST_AHEAD
        self.open = waits or ahead

    def _learn_prefetch_lead(self) -> bool:
        if self._knows_lead:
            return True
        if self._first_idle is None:
            self._first_idle = self._idle
            most = 1 if self._in_hand else _MOST_AHEAD
            self._knows_lead = not 0 < self._idle <= most
            return self._knows_lead
        self._knows_lead, self.lead = True, self._first_idle
        lead = format_count(self.lead, "step")
        self.warn(
            f"the loop over run.steps runs {lead} ahead of training, as a prefetcher "
            f"does: a step counts as done {lead} later, once it is trained"
        )
        return True


def _is_step_in_a_variable(step: int) -> bool:
    """Return whether the code that loops has this number in a variable.

    Generators between it and `run.steps` do not count: they may keep what they take.
    """
    frame = sys._getframe()  # noqa: SLF001  # in Python's documentation
    while frame is not None and (
        frame.f_code.co_flags & inspect.CO_GENERATOR
        or frame.f_globals.get("__name__", "").startswith("hpckit.")
    ):
        frame = frame.f_back  # type: ignore[assignment]
    values = () if frame is None else frame.f_locals.values()
    return any(type(value) is int and value == step for value in values)
