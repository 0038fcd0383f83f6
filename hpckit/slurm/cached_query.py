"""Slurm's view of jobs for display: one cached query for all of the user's launches.

It asks so rarely that the controller does not notice, however many processes want to know. Do not
base decisions (submit, resume, cancel, feed) on it: use `hpckit.slurm.query.observe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.run import Observation
from hpckit.model.states import parse_slurm_state
from hpckit.slurm.answer_cache import AnswerFolder, Answers, CachedAnswer, find_answer_folder
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import parse_sacct, parse_scontrol_settings, parse_squeue
from hpckit.slurm.query import ask_accounting, ask_queue, combine_queue_and_accounting, list_main_job_ids
from hpckit.values import dataclass, field

CONFIG_AGE = timedelta(hours=1)
"""How long the controller's settings are taken as they were."""

_FINAL = timedelta(hours=1)
"""How long the accounting's answer is valid for ended jobs that slurmctld has forgotten."""

_AHEAD = timedelta(seconds=1)
_ALL = "all"
_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAge:
    """The maximum age of an answer: `least`, or more if Slurm is slow; never before `not_before`.

    With `now`, only an answer from after this moment counts, and a recent failure does not stop asking.
    """

    least: timedelta
    not_before: datetime | None = None
    now: bool = False


JobReport = tuple[Mapping[str, Observation], datetime | None]
"""Observations of jobs, and when squeue was asked; None if it did not answer: they are the accounting's."""


def observe_jobs_with_cache(
    jobs: Sequence[str], commands: SlurmCommands, clock: Callable[[], datetime], wish: AllowedAge
) -> JobReport | None:
    """Return Slurm's view of these jobs, possibly cached; None if there is no answer folder.

    Raises SchedulerAwayError if neither squeue nor sacct answers, or both failed recently.
    """
    answer_folder = find_answer_folder(commands.environ, commands.bin_dir, make=True)
    if answer_folder is None:
        return None
    source = _CachedSource(
        answer_folder=answer_folder, commands=commands, clock=clock, wish=wish, began=clock()
    )
    observations = combine_queue_and_accounting(
        source.observe_queue, source.observe_accounting, jobs, source.began
    )
    return observations, source.asked_at


def invalidate_cached_answers(commands: SlurmCommands) -> None:
    """Invalidate all answers from before this moment: the user's jobs have changed."""
    answer_folder = find_answer_folder(commands.environ, commands.bin_dir, make=False)
    if answer_folder is not None:
        answer_folder.record_job_change(datetime.now(UTC))


def ask_cluster_config(
    commands: SlurmCommands, now: datetime, oldest: timedelta = CONFIG_AGE
) -> dict[str, str]:
    """Return `scontrol show config` by name, not older than that.

    Empty if Slurm does not answer.
    """
    folder = find_answer_folder(commands.environ, commands.bin_dir, make=True)
    known = Answers() if folder is None else folder.load("scontrol")
    found = known.answers.get(_ALL)
    if not oldest or found is None or not -_AHEAD <= now - found.asked_at <= oldest:
        try:
            text = commands.run("scontrol", "show", "config")
        except SchedulerError:
            return {}
        found = CachedAnswer(asked_at=now, text=text)
        if folder is not None:
            folder.save("scontrol", known.with_new_answers({_ALL: text}, now, timedelta()))
    return parse_scontrol_settings(found.text)


@dataclass(slots=True, kw_only=True)
class _CachedSource:
    """squeue and sacct, through the answer folder."""

    answer_folder: AnswerFolder
    commands: SlurmCommands
    clock: Callable[[], datetime]
    wish: AllowedAge
    began: datetime
    asked_at: datetime | None = field(default=None, init=False)

    def observe_queue(self, jobs: Sequence[str]) -> Iterable[Observation]:
        """Return what slurmctld reports for these jobs' arrays."""
        said = self._get_or_ask_answers("squeue", (_ALL,), lambda _: {_ALL: ask_queue(self.commands)})[_ALL]
        self.asked_at = said.asked_at
        # Of these jobs alone, so that the rest need not be parsed.
        wanted = set(list_main_job_ids(jobs))
        lines = (line for line in said.text.splitlines() if _parse_main_job_id(line) in wanted)
        return parse_squeue("\n".join(lines), said.asked_at)

    def observe_accounting(self, jobs: Sequence[str]) -> Iterator[Observation]:
        """Yield what the accounting reports for these jobs' arrays."""
        for said in self._get_or_ask_answers(
            "sacct", list_main_job_ids(jobs), self._ask_accounting_by_job
        ).values():
            yield from parse_sacct(said.text, said.asked_at)

    def _ask_accounting_by_job(self, ids: Sequence[str]) -> Mapping[str, str]:
        found: dict[str, list[str]] = {job_id: [] for job_id in ids}
        for line in ask_accounting(ids, self.commands).splitlines():
            found.get(_parse_main_job_id(line), []).append(line)
        return {one: "\n".join(lines) for one, lines in found.items()}

    def _get_or_ask_answers(
        self, program: str, keys: Sequence[str], question: Callable[[Sequence[str]], Mapping[str, str]]
    ) -> Mapping[str, CachedAnswer]:
        known = self.answer_folder.load(program)
        if self._list_outdated_keys(known, keys):
            with self.answer_folder.lock_queries(self.commands.timeout + _PATIENCE):
                known = self.answer_folder.load(program)
                missing = self._list_outdated_keys(known, keys)
                if missing:
                    self._refuse_early_retry(known)
                    known = self._ask_and_save(program, known, lambda: question(missing))
        return {key: known.answers[key] for key in keys}

    def _ask_and_save(
        self, program: str, known: Answers, question: Callable[[], Mapping[str, str]]
    ) -> Answers:
        at, began = self.clock(), time.monotonic()
        try:
            found = question()
        except SchedulerAbsentError:
            raise
        except SchedulerError as error:
            self.answer_folder.save(
                program, known.with_failed_call(error, self.clock(), _elapsed_since(began))
            )
            raise
        # If slurmctld has forgotten a job and the accounting says it ended, that is final.
        final = {key for key, text in found.items() if key != _ALL and _have_all_jobs_ended(text)}
        known = known.with_new_answers(found, at, _elapsed_since(began), final=final)
        self.answer_folder.save(program, known)
        return known

    def _refuse_early_retry(self, known: Answers) -> None:
        # With `--fresh`, earlier failures are tried again, failures since then are not.
        if not self.wish.now or (known.tried_at is not None and known.tried_at >= self.began):
            known.refuse_early_retry(self.wish.least, self.clock())

    def _list_outdated_keys(self, known: Answers, keys: Iterable[str]) -> list[str]:
        allowed, now = known.max_answer_age(self.wish.least), self.clock()
        return [
            key
            for key in keys
            if key not in known.answers or not self._is_answer_valid(known.answers[key], allowed, now)
        ]

    def _is_answer_valid(self, one: CachedAnswer, allowed: timedelta, now: datetime) -> bool:
        floors = (
            self.answer_folder.jobs_changed_at,
            self.wish.not_before,
            self.began if self.wish.now else None,
        )
        if any(floor is not None and one.asked_at < floor for floor in floors):
            return False
        age = now - one.asked_at
        longest = _FINAL if one.final else allowed
        return -_AHEAD <= age <= longest


def _have_all_jobs_ended(text: str) -> bool:
    states = [line.split("|")[1] for line in text.splitlines() if line.count("|") > 1]
    return bool(states) and all(parse_slurm_state(state).ended for state in states)


def _parse_main_job_id(line: str) -> str:
    return line.partition("|")[0].partition("_")[0].strip()


def _elapsed_since(began: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - began)
