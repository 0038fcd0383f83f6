"""What Slurm says of jobs, for those who only show it: one question for all of the user's launches.

Responsible for asking so rarely that the controller does not notice, however many processes want
to know; whoever decides by the answer (submit, resume, cancel, feed) must not use it, but
`hpckit.slurm.query.observe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.run import Observation
from hpckit.model.states import parse_state
from hpckit.slurm.answer_cache import AnswerFolder, Answers, CachedAnswer, find_answer_folder
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import read_sacct, read_squeue
from hpckit.slurm.query import ask_accounting, ask_queue, mains, observe_through

_FINAL = timedelta(hours=1)
"""How long the accounting's word holds on jobs that slurmctld has forgotten and that have ended."""

_AHEAD = timedelta(seconds=1)
_ALL = "all"
_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAge:
    """How old an answer may be: `least` old, however fast Slurm is, but not from `not_before`.

    With `now`, it has to be asked after this very moment, also where Slurm did not answer lately.
    """

    least: timedelta
    not_before: datetime | None = None
    now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What was said of jobs, and when squeue was asked (the earliest moment that counts)."""

    observations: Mapping[str, Observation]
    asked_at: datetime


def observe_shared(
    jobs: Sequence[str], commands: SlurmCommands, clock: Callable[[], datetime], wish: AllowedAge
) -> JobReport | None:
    """Return what Slurm says or said of these jobs; None where nothing can be shared.

    Raises SchedulerAwayError where neither squeue nor sacct answers, or did lately.
    """
    checkpoint_folder = find_answer_folder(commands.environ, commands.bin_dir, make=True)
    if checkpoint_folder is None:
        return None
    source = _CachedSource(
        checkpoint_folder=checkpoint_folder,
        commands=commands,
        clock=clock,
        wish=wish,
        began=clock(),
    )
    observations = observe_through(source, jobs, source.began)
    return JobReport(observations=observations, asked_at=source.asked_at)


def forget(commands: SlurmCommands) -> None:
    """Let no answer from before this moment be shown: the user's jobs have changed."""
    checkpoint_folder = find_answer_folder(commands.environ, commands.bin_dir, make=False)
    if checkpoint_folder is not None:
        checkpoint_folder.change(datetime.now(UTC))


@dataclass(slots=True, kw_only=True)
class _CachedSource:
    """squeue and sacct, through the shelf."""

    checkpoint_folder: AnswerFolder
    commands: SlurmCommands
    clock: Callable[[], datetime]
    wish: AllowedAge
    began: datetime
    asked_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.asked_at = self.began

    def queue(self, jobs: Sequence[str]) -> Iterable[Observation]:
        """Return what slurmctld says of these jobs' arrays."""
        said = self._ask("squeue", (_ALL,), lambda _: {_ALL: ask_queue(self.commands)})[_ALL]
        self.asked_at = said.asked_at
        return read_squeue(_lines_of(said.text, mains(jobs)), said.asked_at)

    def accounts(self, jobs: Sequence[str]) -> Iterator[Observation]:
        """Yield what the accounting says of these jobs' arrays."""
        for said in self._ask("sacct", mains(jobs), self._accounting).values():
            yield from read_sacct(said.text, said.asked_at)

    def _accounting(self, ids: Sequence[str]) -> Mapping[str, str]:
        found: dict[str, list[str]] = {one: [] for one in ids}
        for line in ask_accounting(ids, self.commands).splitlines():
            found.get(_main(line), []).append(line)
        return {one: "\n".join(lines) for one, lines in found.items()}

    def _ask(
        self,
        program: str,
        keys: Sequence[str],
        question: Callable[[Sequence[str]], Mapping[str, str]],
    ) -> Mapping[str, CachedAnswer]:
        """Return the answers to `keys`; the question is asked of those that are too old."""
        known = self.checkpoint_folder.load(program)
        if self._missing(known, keys):
            with self.checkpoint_folder.one_at_a_time(self.commands.timeout + _PATIENCE):
                known = self.checkpoint_folder.load(program)
                missing = self._missing(known, keys)
                if missing:
                    self._check_rested(known)
                    known = self._put(program, known, lambda: question(missing))
        return {key: known.answers[key] for key in keys}

    def _put(
        self, program: str, known: Answers, question: Callable[[], Mapping[str, str]]
    ) -> Answers:
        at, began = self.clock(), time.monotonic()
        try:
            found = question()
        except SchedulerAbsentError:
            raise
        except SchedulerError as error:
            self.checkpoint_folder.save(program, known.failed(error, self.clock(), _since(began)))
            raise
        # What slurmctld has forgotten and the accounting calls ended does not change any more.
        final = {key for key, text in found.items() if key != _ALL and _all_ended(text)}
        known = known.heard(found, at, _since(began), final=final)
        self.checkpoint_folder.save(program, known)
        return known

    def _check_rested(self, known: Answers) -> None:
        # What failed before `--fresh` was typed is tried anew, what fails meanwhile is not.
        if not self.wish.now or (known.tried_at is not None and known.tried_at >= self.began):
            known.check_rested(self.wish.least, self.clock())

    def _missing(self, known: Answers, keys: Iterable[str]) -> list[str]:
        allowed, now = known.age_allowed(self.wish.least), self.clock()
        return [
            key
            for key in keys
            if key not in known.answers or not self._holds(known.answers[key], allowed, now)
        ]

    def _holds(self, one: CachedAnswer, allowed: timedelta, now: datetime) -> bool:
        floors = (
            self.checkpoint_folder.changed_at,
            self.wish.not_before,
            self.began if self.wish.now else None,
        )
        if any(floor is not None and one.asked_at < floor for floor in floors):
            return False
        age = now - one.asked_at
        longest = _FINAL if one.final else allowed
        return -_AHEAD <= age <= longest


def _lines_of(text: str, ids: Iterable[str]) -> str:
    """Return the lines of these jobs: the rest need not be read."""
    wanted = set(ids)
    return "\n".join(line for line in text.splitlines() if _main(line) in wanted)


def _all_ended(text: str) -> bool:
    states = [line.split("|")[1] for line in text.splitlines() if line.count("|") > 1]
    return bool(states) and all(parse_state(state).ended for state in states)


def _main(line: str) -> str:
    return line.partition("|")[0].partition("_")[0].strip()


def _since(began: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - began)
