"""The kinds of faults that can be injected on purpose, and how a fault is written.

A fault is what is done to a run; a failure (model/failure) is the consequence. planning/faults
reads the words of a fault.
"""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass


class FaultKind(StrEnum):
    """What goes wrong."""

    kill = "kill"
    stop = "stop"
    cont = "cont"
    term = "term"
    segfault = "segfault"
    abort = "abort"
    hang = "hang"
    hang_gil = "hang_gil"
    raise_ = "raise"
    exit = "exit"
    oom = "oom"
    nan = "nan"
    fill_disk = "fill_disk"
    leak = "leak"
    requeue = "requeue"
    scancel = "scancel"
    preempt = "preempt"
    flip = "flip"
    truncate = "truncate"
    tear = "tear"
    kill_node = "kill_node"
    revive_node = "revive_node"
    cut_node = "cut_node"
    heal_node = "heal_node"
    stop_controller = "stop_controller"
    start_controller = "start_controller"


class FaultTarget(StrEnum):
    """Which process a signal goes to."""

    rank = "rank"
    agent = "agent"
    supervisor = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. A value that was not given is None; `times` None means always.

    `fraction` is the position in the concatenated files of a checkpoint at which a bit flips or the
    cut is made.
    """

    kind: FaultKind
    target: FaultTarget = FaultTarget.rank
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    times: int | None = 1
    code: int | None = None
    seconds: float | None = None
    limit_mb: int | None = None
    mb_per_step: int | None = None
    folder: str | None = None
    partition: str | None = None
    fraction: float | None = None

    @property
    def text(self) -> str:
        """The fault as text that parses back to the same fault."""
        target = [] if self.target is FaultTarget.rank else [self.target.value]
        values = [
            f"{name}={'always' if value is None else value}"
            for name, one in self.__dataclass_fields__.items()
            if name not in {"kind", "target"} and (value := getattr(self, name)) != one.default
        ]
        return " ".join([self.kind.value, *target, *values])


SIGNALS = frozenset(map(FaultKind, ("kill", "stop", "cont", "term", "segfault", "abort")))
"""Kinds that are a signal to a process when they are injected from outside."""

ON_CHECKPOINTS = frozenset({FaultKind.flip, FaultKind.truncate, FaultKind.tear})
"""Kinds that permanently damage the newest checkpoint."""

ON_NODES = frozenset({FaultKind.kill_node, FaultKind.revive_node, FaultKind.cut_node, FaultKind.heal_node})
"""Kinds that break or repair a node of the sandbox."""

ON_SANDBOX = ON_NODES | {FaultKind.stop_controller, FaultKind.start_controller}
"""Kinds that only the sandbox can do."""

MENDING = frozenset({FaultKind.cont, FaultKind.revive_node, FaultKind.heal_node, FaultKind.start_controller})
"""Kinds that undo another."""
