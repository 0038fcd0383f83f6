"""Which steps are trained at a boundary: a loop may take steps ahead, or add up gradients of many.

The loop came round, but what it asked for may lie in a prefetcher, or in gradients that no
optimizer has used. Registered optimizers tell. In doubt a step is not done.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hpckit.runtime.parallel.gradients import local_part

_SHORT_S = 0.01
"""In less than this nothing is trained."""
_PATIENCE_S = 60.0
_MOST_STEPS = 256
"""Steps whose gradients may be added up."""
_MOST_AHEAD = 8


@dataclass(slots=True, kw_only=True)
class TrainedSteps:
    """Follows the registered optimizers of one loop from boundary to boundary.

    `open`: the state holds a part of what some steps do, so that it must be neither saved nor left
    here. `lead` is how many steps the loop has always taken and not yet trained. `warn` gets a
    text, once. Without a registered optimizer of torch all steps that were taken count as trained.
    """

    warn: Callable[[str], None] = lambda _text: None
    open: bool = field(default=False, init=False)
    lead: int = field(default=0, init=False)
    _parameters: list[Tensor] = field(default_factory=list, init=False)
    _values: list[int] = field(default_factory=list, init=False)
    _gradients: list[tuple[weakref.ref[Tensor], int] | None] = field(
        default_factory=list, init=False
    )
    _updated: bool = field(default=False, init=False)
    _pending: bool = field(default=False, init=False)
    _knows_lead: bool = field(default=False, init=False)
    _first_gap: int | None = field(default=None, init=False)
    _gap: int = field(default=0, init=False)
    _usual_gap: int = field(default=_MOST_AHEAD, init=False)
    _since: float = field(default=0.0, init=False)
    _taken_at: float | None = field(default=None, init=False)

    def watch(self, objects: Iterable[Any]) -> None:
        """Follow the optimizers among these objects."""
        for one in objects:
            if isinstance(one, Optimizer):
                one.register_step_post_hook(self._note)
                groups = (group["params"] for group in one.param_groups)
                self._parameters += [each for own in groups for each in (*own[:1], *own[1:][-1:])]

    def _note(self, *_: Any) -> None:
        self._updated = True

    def begin_step(self) -> None:
        """Note that the loop takes a step now."""
        if not self._parameters:
            return
        if self._taken_at is None:
            self._since = time.monotonic()
            self._look()
        self._taken_at = time.monotonic()

    def end_step(self) -> None:
        """Judge the boundary at which the loop asks for another step than the one it took."""
        if self._taken_at is None:
            return
        now = time.monotonic()
        changed, begun = self._look()
        updated, self._updated = self._updated or changed, False
        if updated:
            self._judge_lead()
            self._usual_gap, self._gap = self._gap, 0
            self._pending, self._since = False, now
            self.open = not self._knows_lead
            return
        self._gap += 1
        self._pending |= begun
        # Several steps for one update are no lead.
        self._knows_lead |= self._pending or self._first_gap is not None
        waits = self._pending and self._gap <= _MOST_STEPS
        ahead = self._gap <= self._usual_gap or now - self._taken_at < _SHORT_S
        self.open = waits or (ahead and now - self._since < _PATIENCE_S)

    def _judge_lead(self) -> None:
        if self._knows_lead:
            return
        if self._first_gap is None:
            self._first_gap = self._gap
            self._knows_lead = not 0 < self._gap <= _MOST_AHEAD
            return
        self._knows_lead, self.lead = True, self._first_gap
        self.warn(
            f"the loop over run.steps takes {self.lead} more before it trains one, as a prefetcher "
            f"does: a step counts as done {self.lead} later, once it is trained"
        )

    def _look(self) -> tuple[bool, bool]:
        """Return whether parameters have changed since the last look, and whether gradients have.

        A gradient that is gone has not changed.
        """
        with torch.no_grad():  # so that a sharded one gives its part itself
            values = [local_part(one)._version for one in self._parameters]  # noqa: SLF001  # torch has no other name
        gradients = [one.grad for one in self._parameters]
        changed = values != self._values
        begun = any(
            one is not None and (old is None or old[0]() is not one or old[1] != one._version)  # noqa: SLF001
            for one, old in zip(gradients, self._gradients or [None] * len(gradients), strict=True)
        )
        self._values, self._gradients = values, [_mark(one) for one in gradients]
        return changed, begun


def _mark(gradient: Tensor | None) -> tuple[weakref.ref[Tensor], int] | None:
    return None if gradient is None else (weakref.ref(gradient), gradient._version)  # noqa: SLF001
