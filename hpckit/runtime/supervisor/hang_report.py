"""What is known of a round that hangs: the agent's finding, and what all ranks were doing.

Hangs are detected in runtime.agent.hang_detector, and blamed in planning.recovery.hang.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpckit.model.failure import Failure, RankStack
from hpckit.planning.recovery.hang import StalledRank, blame
from hpckit.runtime.channel import messages

Told = messages.Hung | messages.StackSaved | messages.StacksSaved


@dataclass(slots=True)
class HangReport:
    """The hang of a round, if there is one. `complete` are the nodes that have sent all stacks."""

    found: messages.Hung | None = field(default=None, init=False)
    complete: set[int] = field(default_factory=set, init=False)
    _stacks: list[RankStack] = field(default_factory=list, init=False)

    def take(self, sender: int, message: Told) -> None:
        """Add an agent's message; the first finding counts."""
        match message:
            case messages.Hung():
                self.found = self.found or message
            case messages.StackSaved():
                self._stacks.append(message.stack)
            case messages.StacksSaved():
                self.complete.add(sender)

    @property
    def silent_s(self) -> float:
        """How long no step had begun."""
        return 0.0 if self.found is None else self.found.silent_s

    def failure(self) -> Failure | None:
        """Return the failure; None if no hang was found."""
        if self.found is None:
            return None
        hung = self.found
        stall = StalledRank(
            rank=hung.rank,
            step=hung.step,
            silent_s=hung.silent_s,
            limit_s=hung.limit_s,
            over=hung.over,
        )
        return blame(stall, self._stacks)
