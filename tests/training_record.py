"""Writes what training leaves behind that was killed and restarted, and knows what of it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cli_world import START, Desk, Writer
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.record.launches import Launch
from hpckit.record.store import append_json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A round: its attempt and number, its first step, and the step at which it was killed."""

    attempt: int
    number: int
    first: int
    end: int


@st.composite
def trained_rounds(draw: st.DrawFn) -> list[Trained]:
    """Draw rounds that each begin at a step below what was reached, as from a checkpoint."""
    drawn, reached, attempt, number = list[Trained](), 0, 1, 0
    for _ in range(draw(st.integers(1, 5))):
        first = draw(st.integers(0, reached))
        end = draw(st.integers(first, first + 8))
        drawn.append(Trained(attempt=attempt, number=number, first=first, end=end))
        reached = max(reached, end)
        again = draw(st.booleans())
        attempt, number = (attempt, number + 1) if again else (attempt + 1, 0)
    return drawn


@dataclass(slots=True)
class TrainingRecord:
    """A launch of one run, to which rounds of training are added."""

    launch: Launch
    loss: dict[int, float] = field(default_factory=dict)
    rows: int = 0
    _at: datetime = START

    @classmethod
    def empty(cls, folder: Path) -> TrainingRecord:
        """Return a launch that has not begun."""
        outputs = folder / "outputs"
        outputs.mkdir(parents=True)
        return cls(Desk(folder=outputs).freeze(sweep=[("lr=0.1",)]))

    def train(self, done: Trained) -> None:
        """Add the rows and events of a round."""
        writer = Writer(launch=self.launch, attempt=done.attempt)
        if done.number == 0:
            writer.start()
        else:
            writer.round(done.number)
        if done.end > done.first:
            writer.tell(events.StepReached(at=self._at, round=done.number, step=done.first))
            self.loss = {step: one for step, one in self.loss.items() if step < done.first}
        for step in range(done.first, done.end):
            self.log(done.attempt, round=done.number, step=step, loss=self.rows / 4)
            self.loss[step] = (self.rows - 1) / 4

    def log(self, attempt: int, **row: object) -> None:
        """Append a row, a second after the one before."""
        self._at += timedelta(seconds=1)
        paths = self.launch.paths.run(0).attempt(attempt)
        append_json_lines(paths.metrics, {"at": self._at.isoformat(timespec="milliseconds"), **row})
        self.rows += 1

    def end(self, attempt: int) -> None:
        """Complete the run."""
        Writer(launch=self.launch, attempt=attempt).complete()


KILLED = (
    Trained(attempt=1, number=0, first=0, end=150),
    Trained(attempt=2, number=0, first=100, end=120),
    Trained(attempt=2, number=1, first=110, end=200),
)
"""Killed after step 149, restarted at 100, killed again after 119, and restarted at 110."""


def killed_training(folder: Path) -> TrainingRecord:
    """Return the record of KILLED."""
    record = TrainingRecord.empty(folder)
    for done in KILLED:
        record.train(done)
    return record


def expected_of(found: Sequence[tuple[int, float]], record: TrainingRecord) -> bool:
    """Return whether these (step, value) are each step's value that holds, once."""
    wanted: Mapping[int, float] = record.loss
    return list(found) == sorted(wanted.items())
