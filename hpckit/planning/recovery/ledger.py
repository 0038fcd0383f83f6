"""A run's failures over all its rounds and attempts, and what is left of its budgets. Pure.

Counts what failed, how often since the run last made progress, and on which nodes. The ledger is a
fold of the recorded events, so it survives rounds, requeues and resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, Trait
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import Recovery
from hpckit.values import dataclass, field, replace

_EXCLUDED_FOR = timedelta(hours=12)
"""After this time a node gets another chance: it may have been rebooted or repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One failure. `progressed` is whether the run had reached a new furthest step before it.

    A failure that is charged to the `checkpoint` it loaded counts for nothing else.
    """

    attempt: int
    cause: Cause
    signature: str
    nodes: tuple[str, ...]
    progressed: bool
    at: datetime
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All failures of a run, in order.

    `best_step` is the furthest step that ever began. `ran` is how long rounds lasted in total.
    `save_cost` is the cost of the latest save. `kept` are the nodes that a new attempt should have
    left out and could not: asking for another one does not help. `returned` has the nodes that came
    back with a satellite job, and how many entries there were then.
    """

    entries: tuple[LedgerEntry, ...] = ()
    best_step: int | None = None
    ran: timedelta = timedelta()
    save_cost: SaveCost | None = None
    kept: frozenset[str] = frozenset()
    returned: Mapping[str, int] = field(default_factory=dict)

    def after_round(self, ended: events.RoundEnded, attempt: int, *, ran: timedelta = timedelta()) -> Ledger:
        """Return the ledger with this round in it; one that completed adds only its steps."""
        progressed = self._is_further_step(ended.step)
        known = replace(self, best_step=ended.step if progressed else self.best_step, ran=self.ran + ran)
        if (failure := ended.failure) is None:
            return known
        entry = LedgerEntry(
            attempt=attempt,
            cause=failure.cause,
            # What a program printed last may differ each time; its exit code tells enough.
            signature="-".join(failure.signature.split("-")[:2])
            if failure.cause is Cause.exit_code
            else failure.signature,
            nodes=tuple(failure.node.split(", ")) if failure.node else (),
            progressed=progressed,
            at=ended.at,
            checkpoint=failure.checkpoint,
        )
        return replace(known, entries=(*self.entries, entry))

    def add_requeue_result(self, asked: events.RequeueAsked) -> Ledger:
        """Return the ledger with what became of the nodes that a new attempt was to leave out."""
        return replace(self, kept=self.kept.union(asked.kept).difference(asked.excluded))

    def add_returned_node(self, node: str) -> Ledger:
        """Return the ledger after a satellite job has brought this node.

        If the node was lost before, that no longer excludes it.
        """
        return replace(self, returned={**self.returned, node: len(self.entries)})

    def mean_time_between_failures(self, expected: timedelta) -> timedelta:
        """Return the mean time between failures, from the expected and the observed time.

        The expectation weighs as much as one failure after that time (the mean of a gamma prior
        with one event). A planned stop is not a failure: it costs no work.
        """
        count = sum(not entry.cause.planned for entry in self.entries)
        return (expected + self.ran) / (1 + count)

    def advance_to_step(self, step: int) -> Ledger:
        """Return the ledger of a run that has reached this step."""
        return replace(self, best_step=step) if self._is_further_step(step) else self

    def _is_further_step(self, step: int | None) -> bool:
        return step is not None and (self.best_step is None or step > self.best_step)

    @property
    def failures_without_progress(self) -> Sequence[LedgerEntry]:
        """The failures since the run last made progress, including the first one after it."""
        latest = [place for place, entry in enumerate(self.entries) if entry.progressed]
        return self.entries[latest[-1] if latest else 0 :]

    def count_failures_against_budget(self, cause: Cause, left_out: frozenset[str] = frozenset()) -> int:
        """Return how many failures of this class count against its budget.

        One failure counts once, however many nodes it took. Repeated failures on nodes that are
        left out from now on no longer count: the fault was the node's, not the run's. Of unhealthy
        nodes each round counts that they kept from starting: no other budget bounds those.
        """
        count, charged = 0, set[str]()
        left_out = frozenset() if cause is Cause.unhealthy else left_out - self.kept
        for entry in self.failures_without_progress:
            bad = left_out.intersection(entry.nodes)
            if entry.checkpoint is None and entry.cause is cause and not (bad and bad <= charged):
                count += 1
                charged |= bad
        return count

    def count_checkpoint_load_failures(self, checkpoint: str) -> int:
        """Return how many failures are charged to loading this checkpoint."""
        return sum(entry.checkpoint == checkpoint for entry in self.entries)

    def count_repeats_of_latest_failure(self) -> int:
        """Return how often in a row the latest failure happened without progress.

        Planned stops in between do not interrupt the row.
        """
        latest = self.entries[-1]
        count = 0
        for entry in reversed(self.failures_without_progress):
            if entry.checkpoint is not None:
                continue
            if (entry.signature, entry.cause) == (latest.signature, latest.cause):
                count += 1
            elif not entry.cause.planned:
                break
        return count

    def without_node_loss_failures(self) -> Ledger:
        """Return the ledger as if no node had been lost."""
        return replace(
            self, entries=tuple(entry for entry in self.entries if not entry.cause.has_trait(Trait.gone))
        )

    def list_nodes_failing_too_often(self, policy: Recovery, at: datetime | None = None) -> frozenset[str]:
        """Return the nodes that failed too often lately: before `at`, or the latest failure."""
        latest = at or max((entry.at for entry in self.entries), default=None)
        strikes: Counter[str] = Counter()
        for place, entry in enumerate(self.entries):
            of_a_node = entry.cause.has_trait(Trait.of_a_node) and entry.checkpoint is None
            if of_a_node and latest is not None and latest - entry.at < _EXCLUDED_FOR:
                weight = policy.node_failures if entry.cause.has_trait(Trait.strikes_out) else 1
                strikes.update(dict.fromkeys(self._list_charged_nodes(place, entry), weight))
        return frozenset(node for node, count in strikes.items() if count >= policy.node_failures)

    def _list_charged_nodes(self, place: int, entry: LedgerEntry) -> Sequence[str]:
        if not entry.cause.has_trait(Trait.gone):
            return entry.nodes
        return [node for node in entry.nodes if place >= self.returned.get(node, 0)]


@dataclass(slots=True)
class _Reading:
    ledger: Ledger = field(default_factory=Ledger)
    attempt: int = 0
    round_at: datetime | None = None

    def add_event_to_ledger(self, event: events.Event) -> None:
        match event:
            case events.AttemptStarted():
                self.attempt = event.attempt
            case events.StepReached():
                self.ledger = self.ledger.advance_to_step(event.step)
            case events.RoundStarted():
                self.round_at = event.at
            case events.CheckpointSaved():
                stall, took = (timedelta(seconds=s) for s in (event.stall_s, event.duration_s))
                self.ledger = replace(self.ledger, save_cost=SaveCost(stall=stall, duration=took))
            case events.RoundEnded():
                ran = timedelta() if self.round_at is None else event.at - self.round_at
                self.ledger = self.ledger.after_round(event, self.attempt, ran=ran)
                self.round_at = None
            case events.AgentJoined(satellite=str()):
                self.ledger = self.ledger.add_returned_node(event.node)
            case events.RequeueAsked():
                self.ledger = self.ledger.add_requeue_result(event)
            case _:
                pass


def build_ledger_from_events(history: Iterable[events.Event]) -> Ledger:
    """Return the ledger of a run from the events of its attempts, oldest first."""
    reading = _Reading()
    for event in history:
        reading.add_event_to_ledger(event)
    return reading.ledger


def would_more_have_helped(ledger: Ledger, cause: Cause, *, saved: bool) -> bool:
    """Whether a run's latest failure, which is in the ledger, says that its job asked for too little.

    `saved` is whether the attempt saved its state. If it did, at a step beyond all earlier ones, it had time
    enough: the next attempt continues there.
    """
    if cause is Cause.time_limit:
        return not (saved and ledger.entries[-1].progressed)
    return cause is Cause.host_oom


def explain_exhausted_restart_budget(
    ledger: Ledger, failure: Failure, policy: Recovery, left_out: frozenset[str] = frozenset()
) -> str | None:
    """Return why the latest failure, which is in the ledger, ends the run; None if it does not.

    Empty if the policy allows no restart for such a failure: that needs no explanation.
    """
    if failure.checkpoint is not None:
        return None
    allowed = policy.restarts.get(failure.cause, 0)
    if allowed == 0:
        return ""
    # Announced ends reveal nothing about the run, even if they repeat; its time limit may.
    sent_away = failure.cause.planned and failure.cause is not Cause.time_limit
    count = 0 if sent_away else ledger.count_repeats_of_latest_failure()
    if count >= policy.max_identical_failures:
        return f"the same failure {count} times without getting further"
    spent = ledger.count_failures_against_budget(failure.cause, left_out)
    if spent > allowed:
        return (
            f"{spent} failures of this kind without getting further; "
            f"recovery.restarts.{failure.cause} is {allowed}"
        )
    return None
