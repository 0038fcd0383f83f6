"""Profiles that users ask for: passes requests on to the ranks, and writes down what came of them.

One profile at a time; another request is refused meanwhile. What a round has not reported when it
ends has not been profiled.
"""

from __future__ import annotations

from functools import partial

from hpckit.model import messages
from hpckit.model.counted import format_ranges
from hpckit.model.profile import (
    MOST_RANKS,
    MOST_STEPS,
    ProfileAnswer,
    ProfileRequest,
    RankProfile,
    planned_profile_id,
)
from hpckit.planning.rounds.round_state import RoundState
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import profile_mailbox
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.outlook import Outlook
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field, replace

_ENDED = "the rank ended before"


@dataclass(slots=True)
class Profiles:
    """The profiles of one attempt, whose agents get the orders."""

    journal: Journal
    agents: Agents
    outlook: Outlook
    _open: dict[str, ProfileAnswer] = field(default_factory=dict, init=False)

    async def answer_profile_requests(self, before: int, _: int) -> None:
        """Answer the requests after this one, in their order."""
        for asked in await run_in_thread(lambda: profile_mailbox(self.journal.paths).read_requests(before)):
            await self._start_requested_profile(asked)

    async def _start_requested_profile(self, request: ProfileRequest) -> None:
        round_ = None if self.outlook.round is None else self.outlook.round.state
        every = tuple(range(0 if round_ is None else round_.world_size))
        asked = ProfileAnswer(
            id=request.id,
            at=now(),
            round=None if round_ is None else round_.number,
            steps=request.steps,
            ranks=tuple(sorted(set(request.ranks))) or every,
            tool=request.tool,
        )
        why = self._explain_profile_refusal(asked, round_)
        if why is not None or round_ is None:
            self._write_answer(replace(asked, round=None, refused=why, done=True))
            return
        self._open[asked.id] = asked
        self._write_answer(asked)
        order = messages.StartProfile(
            id=asked.id, round=round_.number, steps=asked.steps, ranks=asked.ranks, tool=asked.tool
        )
        await self.agents.broadcast_message(order)
        for rank in asked.ranks:
            if rank in round_.exits:
                self.fail_profiles_of_ended_rank(round_.number, rank)

    def _explain_profile_refusal(self, asked: ProfileAnswer, round_: RoundState | None) -> str | None:
        """Return why a request cannot be followed; None if it can."""
        unready = _explain_why_not_profilable(round_)
        if unready is not None or round_ is None:
            return unready
        if not 0 < asked.steps <= MOST_STEPS or not 0 < len(asked.ranks) <= MOST_RANKS:
            return f"a profile has 1 to {MOST_STEPS} steps, and 1 to {MOST_RANKS} ranks"
        if unknown := [rank for rank in asked.ranks if not 0 <= rank < round_.world_size]:
            return f"it has no rank {format_ranges(unknown)} now; it has 0-{round_.world_size - 1}"
        if self._open:
            other = next(iter(self._open.values()))
            return f"a profile of rank {format_ranges(other.ranks)} is under way"
        return None

    def record_rank_profile(self, message: messages.Profiled) -> None:
        """Note what came of a profile on one rank; planned ones begin without a request."""
        answer = self._open.get(message.id)
        round_ = self.outlook.round
        if answer is None and round_ is not None and message.id == planned_profile_id(message.round):
            planned = self.agents.settings.observe.profile
            answer = ProfileAnswer(
                id=message.id,
                at=now(),
                round=message.round,
                steps=planned.steps,
                ranks=tuple(sorted(set(planned.ranks) & set(round_.state.ranks))),
                tool=planned.tool,
            )
        if answer is not None:
            self._add_rank_profile(answer, message.profile)

    def fail_profiles_of_ended_rank(self, round_: int, rank: int) -> None:
        """Note that a rank has ended: what it has not reported does not come any more."""
        for answer in list(self._open.values()):
            told = {result.rank for result in answer.results}
            if answer.round == round_ and rank in answer.ranks and rank not in told:
                self._add_rank_profile(answer, RankProfile(rank=rank, problem=_ENDED))

    def fail_profiles_of_ended_round(self, round_: int) -> None:
        """Note that a round has ended."""
        for rank in {rank for answer in self._open.values() for rank in answer.ranks}:
            self.fail_profiles_of_ended_rank(round_, rank)

    def _add_rank_profile(self, answer: ProfileAnswer, result: RankProfile) -> None:
        if result.rank not in answer.ranks:
            return
        others = (other for other in answer.results if other.rank != result.rank)
        results = tuple(sorted((*others, result), key=lambda one: one.rank))
        answer = replace(answer, results=results, done=len(results) == len(answer.ranks))
        self._open[answer.id] = answer
        if answer.done:
            del self._open[answer.id]
        self._write_answer(answer)

    def _write_answer(self, answer: ProfileAnswer) -> None:
        mailbox = profile_mailbox(self.journal.paths)
        self.journal.files.queue_replaceable_work(f"profile {answer.id}", partial(mailbox.put_answer, answer))


def _explain_why_not_profilable(round_: RoundState | None) -> str | None:
    """Return why the ranks of a round cannot be profiled now; None if they can."""
    if round_ is None:
        return "its ranks are being started"
    if round_.asked_to_leave:
        return "it was asked to leave"
    if not round_.is_watching:
        return "its ranks are being started, or have just ended"
    if round_.step is None:
        return "none of its ranks has begun a step of `run.steps()` yet, and a profile is made of steps"
    return None
