"""Agreement of all ranks between two steps: whether to save, and whether to leave.

This is one small collective at step boundaries; it saves and ends nothing itself. A notice reaches
ranks at different moments, and possibly only some of them. Ranks that acted on it alone would save
different steps, or leave their peers in a collective. So every rank brings its notice to the next
agreement, and all act at the same step (the maximum over all ranks decides).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from hpckit.errors import UsageError
from hpckit.model import messages
from hpckit.model.failure import ToldBy
from hpckit.model.rank import RankInfo
from hpckit.runtime.channel.rank_pipe import AgentLink
from hpckit.runtime.cpu_group import make_gloo_group_of_all_ranks
from hpckit.runtime.signals import RANK_NOTICES
from hpckit.values import dataclass, field

_INTERVAL_S = 0.25
"""Time between agreements: far shorter than any notice period, at almost no cost."""
_MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all ranks do at this boundary."""

    save: bool = False
    leave: bool = False
    prune: bool = False


@dataclass(slots=True, kw_only=True)
class StepBoundary:
    """The step boundaries of one rank.

    All ranks create theirs at the same time, because it makes its own group. `profile` gets the
    requests for profiles.
    """

    info: RankInfo
    link: AgentLink | None
    profile: Callable[[messages.StartProfile], None] | None = None
    told_by: ToldBy | None = None
    signal: str | None = None
    pruned: bool = False
    patience_s: float = 5.0
    """How long ranks that were asked to leave wait for steps that are not trained yet."""
    _noticed_at: float | None = field(default=None, init=False)
    _group: Any = field(default=None, init=False)
    _next: int | None = field(default=None, init=False)
    _seen_at: float = field(default=0.0, init=False)
    _seen_step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self._has_other_ranks:
            self._group = make_gloo_group_of_all_ranks()

    @property
    def was_asked_to_leave(self) -> bool:
        """Whether this rank was asked to leave; `told_by` says by whom."""
        return self.told_by is not None

    @property
    def _has_other_ranks(self) -> bool:
        return self.info.world_size > 1 and dist.is_initialized()

    @contextmanager
    def treat_signals_as_leave_requests(self) -> Iterator[None]:
        """Treat signals as notices while the step loop runs, unless the user's code handles them.

        Slurm sends SIGTERM to whole process trees (proctrack/linuxproc): without a handler, a rank
        would die of a notice that it should act on.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours = [number for number in RANK_NOTICES if signal.getsignal(number) is signal.SIG_DFL]
        for number in ours:
            signal.signal(number, self._remember_leave_signal)
        try:
            yield
        finally:
            # A rank that is leaving must not die of the same notice, which Slurm sends twice.
            for number in ours if not self.was_asked_to_leave else ():
                signal.signal(number, signal.SIG_DFL)

    def _remember_leave_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.told_by is None:
            self.told_by, self.signal = ToldBy.signal, signal.Signals(number).name

    def agree_on_actions_before_step(
        self, step: int, *, save: bool, veto: bool = False, waits: bool = False, within: int | None = None
    ) -> Agreement:
        """Return what all ranks do before this step; `save` is whether this rank wants to save.

        Ranks that leave also save, unless one of them has a `veto`: a useless state must not
        replace a good one. If steps still wait on one of them, all look again at the next boundary,
        and leave without saving when their patience ends. `within` is the number of steps after
        which to agree again at the latest; it is the same on all ranks.
        """
        self._read_messages()
        if not self._has_other_ranks:
            leaves = self.was_asked_to_leave and (not waits or self._is_patience_over())
            wanted = (save or leaves) and not (veto or waits)
            return Agreement(save=wanted, leave=leaves, prune=self.pruned)
        if self._next is not None and step < self._next:
            return Agreement()
        ours = [self.was_asked_to_leave, save, veto, self.pruned, self._steps_until_agreement(step)]
        ours += [waits, waits and self.was_asked_to_leave and self._is_patience_over()]
        leave, asked, vetoed, pruned, distance, *waiting = self._gather_highest_votes(step, ours, over=False)
        if waiting == [1, 0] and (leave or asked):
            self._next = step + 1
            return Agreement(prune=bool(pruned))
        self._next = step + (distance if within is None else min(distance, within))
        # Never reset it: a signal may have arrived while the ranks were agreeing.
        if leave and self.told_by is None:
            self.told_by = ToldBy.peer
        useless = bool(vetoed or waiting[0])
        return Agreement(save=bool(asked or leave) and not useless, leave=bool(leave), prune=bool(pruned))

    def agree_to_end(self, step: int, *, veto: bool, waits: bool = False) -> tuple[bool, bool]:
        """Agree that the loop ends before this step; return if any has a `veto`, and if any waits.

        Raises UsageError if the loop has not ended on all ranks.
        """
        if not self._has_other_ranks:
            return veto, waits
        _, _, vetoed, *_, waiting, _ = self._gather_highest_votes(
            step, [0, 0, veto, 0, 0, waits, 0], over=True
        )
        return bool(vetoed), bool(waiting)

    def is_same_on_all_ranks(self, number: int) -> bool:
        """Return whether all ranks have the same number; collective."""
        if not self._has_other_ranks:
            return True
        both = torch.tensor([number, -number], dtype=torch.int64)
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self._group)
        return bool(both[0] == -both[1])

    def _gather_highest_votes(self, step: int, ours: list[int | bool], *, over: bool) -> list[int]:
        """Return the maximum of each vote over all ranks, if the loop is over for all or for none.

        Raises UsageError on all ranks otherwise.
        """
        votes = torch.tensor([*ours, over, not over, step, -step], dtype=torch.int64)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        *most, ended, looping, last, first = votes.tolist()
        if ended and (looping or last != -first):
            raise UsageError(
                f"some ranks left the step loop before step {-first}, and others continued"
                if looping
                else f"ranks left the step loop before different steps ({-first} and {last})",
                hint="break at the same step on every rank, such as by an all_reduce of the reason",
            )
        return most

    def _is_patience_over(self) -> bool:
        now = time.monotonic()
        self._noticed_at = now if self._noticed_at is None else self._noticed_at
        return now - self._noticed_at > self.patience_s

    def _read_messages(self) -> None:
        while self.link is not None and (message := self.link.poll()) is not None:
            if isinstance(message, messages.Notice):
                self.told_by = self.told_by or ToldBy.supervisor
            elif isinstance(message, messages.Prune):
                self.pruned = True
            elif isinstance(message, messages.StartProfile) and self.profile is not None:
                self.profile(message)

    def _steps_until_agreement(self, step: int) -> int:
        now, passed = time.monotonic(), step - self._seen_step
        took = now - self._seen_at
        first = self._next is None
        self._seen_at, self._seen_step = now, step
        if first or took <= 0:
            return 1
        return min(max(int(_INTERVAL_S * passed / took), 1), _MOST_STEPS)
