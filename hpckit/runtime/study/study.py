"""The study of an adaptive sweep: gives runs the values of trials, and reports ends to Optuna.

No process has to stay alive for it: the study is a file in the launch folder, which every process
that begins or ends an attempt opens. Our own record is the truth: what a process could not report
because it was killed, the next one that asks for values reports.

Optuna's random numbers are kept next to the study, so that sequential runs get exactly the values
that a study in one process would have asked for.

Optuna is optional: import this module only through `runtime.study.access`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState, create_trial

from hpckit.errors import RunError
from hpckit.model.plain import finite_float_or_none
from hpckit.model.run import PRUNED, RunRecord
from hpckit.model.search import Axis, AxisKind, Pruner, Search, Trial
from hpckit.model.states import RunState
from hpckit.planning.signature import compute_run_signature
from hpckit.record.launches import Launch, load_frozen_config, read_run_records
from hpckit.record.metrics.history import read_last_metrics
from hpckit.record.store import read_json, write_json
from hpckit.record.trials import read_search_space, read_trial, write_trial
from hpckit.values import dataclass

_STATE_VERSION = 1
_FAR_APART = 1_000_003
_RUN = "run"
"""The attribute of a trial that holds its run."""
_GRACE_S = 60
"""Age without a change after which a lock's holder counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """The study of a launch, while no other process asks or reports."""

    launch: Launch
    search: Search
    study: optuna.Study

    def assign_trial(self, index: int) -> None:
        """Give a run its trial: the one it has, unless that has failed by now."""
        path = self.launch.paths.run(index).trial
        trial = read_trial(path)
        if trial is not None and not self._has_failed(trial.number):
            return
        self._report_ends_of_other_runs(index)
        write_trial(
            path, self._begin_or_continue_trial(index) if trial is None else self._repeat_trial(index, trial)
        )

    def report_outcome(self, record: RunRecord) -> str:
        """Report how a run ended, if the study does not know yet; return a warning for the user."""
        trial = read_trial(self.launch.paths.run(record.index).trial)
        if trial is None or not record.state.ended or record.state in _MAY_GO_ON:
            return ""
        if self._read_frozen_trial(trial.number).state.is_finished():
            return ""
        return self._report_to_optuna(trial, record)

    def _report_to_optuna(self, trial: Trial, record: RunRecord) -> str:
        if record.state is not RunState.completed:
            self.study.tell(trial.number, state=TrialState.FAIL)
            return ""
        if record.reason == PRUNED:
            self.study.tell(trial.number, state=TrialState.PRUNED)
            return ""
        value = self._read_final_metric(record)
        if value is None:
            self.study.tell(trial.number, state=TrialState.FAIL)
            return (
                f"sweep.metric {self.search.metric} was not logged as a finite number; in the "
                f"study, trial {trial.number} counts as failed"
            )
        self.study.tell(trial.number, value)
        return ""

    def _report_ends_of_other_runs(self, index: int) -> None:
        """Report the ends of runs whose processes could not do it themselves."""
        open_trials = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        others = [trial.user_attrs[_RUN] for trial in open_trials if _RUN in trial.user_attrs]
        for record in read_run_records(self.launch, [other for other in others if other != index]):
            self.report_outcome(record)

    def _read_final_metric(self, record: RunRecord) -> float | None:
        """Return the metric's last value that holds, from whichever attempt logged it."""
        newest = (record.attempt, record.round or 0)
        run = self.launch.paths.run(record.index)
        return finite_float_or_none(read_last_metrics(run, newest).get(self.search.metric))

    def _begin_or_continue_trial(self, index: int) -> Trial:
        """Ask for values, or continue a trial whose process was killed while it asked."""
        left = self._find_unrecorded_trial(index)
        number = len(self.study.get_trials(deepcopy=False)) if left is None else left.number
        fresh = left is None or not left.params
        sampler = _restore_sampler(self.launch.paths.sampler, self.search.seed, number, fresh=fresh)
        self.study.sampler = sampler
        trial = self.study.ask() if left is None else optuna.Trial(self.study, left._trial_id)  # noqa: SLF001  # there is no other road to a trial that was begun
        trial.set_user_attr(_RUN, index)
        labels = {axis.key: _suggest_value(trial, axis) for axis in self.search.axes}
        if fresh or _read_sampler_state(self.launch.paths.sampler, number + 1) is None:
            _store_sampler_state(self.launch.paths.sampler, sampler, number)
        values = {axis.key: axis.value_of_label(labels[axis.key]) for axis in self.search.axes}
        return self._build_trial(index, trial.number, values, ())

    def _find_unrecorded_trial(self, index: int) -> optuna.trial.FrozenTrial | None:
        """Return a trial that was begun but never recorded: for this run, or for none yet."""
        open_trials = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        mine = [trial for trial in open_trials if trial.user_attrs.get(_RUN, index) == index]
        return mine[-1] if mine else None

    def _repeat_trial(self, index: int, trial: Trial) -> Trial:
        """Begin another trial with the same values: the run is tried again after a failure."""
        before = self._read_frozen_trial(trial.number)
        left = self._find_unrecorded_trial(index)
        if left is None:
            again = create_trial(
                state=TrialState.RUNNING,
                params=before.params,
                distributions=before.distributions,
                user_attrs={_RUN: index},
            )
            self.study.add_trial(again)
            left = self._find_unrecorded_trial(index)
        assert left is not None, "it was added under the lock"  # noqa: S101
        _keep_sampler_state_for_trial(self.launch.paths.sampler, left.number)
        return self._build_trial(index, left.number, trial.values, (*trial.earlier, trial.number))

    def _build_trial(
        self, index: int, number: int, values: Mapping[str, Any], earlier: tuple[int, ...]
    ) -> Trial:
        config = self.search.apply_values_to_config(load_frozen_config(self.launch, index), values)
        return Trial(number=number, values=values, signature=compute_run_signature(config), earlier=earlier)

    def _read_frozen_trial(self, number: int) -> optuna.trial.FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def _has_failed(self, number: int) -> bool:
        return self._read_frozen_trial(number).state is TrialState.FAIL


_MAY_GO_ON = frozenset({RunState.interrupted, RunState.unknown})


def _suggest_value(trial: optuna.Trial, axis: Axis) -> Any:
    if axis.kind is AxisKind.choice:
        return trial.suggest_categorical(axis.key, axis.choice_labels)
    if axis.kind is AxisKind.integer:
        step = 1 if axis.step is None else int(axis.step)
        low, high = int(axis.low), int(axis.high)
        return trial.suggest_int(axis.key, low, high, step=step, log=axis.log)
    return trial.suggest_float(axis.key, axis.low, axis.high, step=axis.step, log=axis.log)


@contextmanager
def open_study(launch: Launch) -> Iterator[OpenStudy]:
    """Open the study of a launch for one process at a time; raises RunError and OSError."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    paths = launch.paths
    with _hold_lock_file(paths.search / "asking", _GRACE_S):
        try:
            search = read_search_space(paths)
            study = load_study(launch, search)
            yield OpenStudy(launch=launch, search=search, study=study)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"the study {paths.journal} cannot be read: {error}",
                hint="restore the study file and resume, or start a new launch",
            ) from error


def load_study(launch: Launch, search: Search) -> optuna.Study:
    """Return the study of a launch; create it if it does not exist."""
    path = str(launch.paths.journal)
    with _hold_lock_file(launch.paths.journal):
        _remove_truncated_last_line(launch.paths.journal)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path))),
        study_name=launch.id,
        direction=search.direction.value,
        pruner=optuna.pruners.MedianPruner()
        if search.pruner is Pruner.median
        else optuna.pruners.NopPruner(),
        load_if_exists=True,
    )


@contextmanager
def _hold_lock_file(path: Path, grace_s: int = 30) -> Iterator[None]:
    """Hold the lock file `path`.lock, as Optuna does: made with O_EXCL, which NFS 3 supports."""
    lock = JournalFileOpenLock(str(path), grace_period=grace_s)
    lock.acquire()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # another process took this one for dead
            lock.release()


def _remove_truncated_last_line(path: Path) -> None:
    """Remove a last line that a full disk cut off: what is appended to it would be unreadable."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        if data and not data.endswith(b"\n"):
            os.ftruncate(handle, data.rfind(b"\n") + 1)
    finally:
        os.close(handle)


def assign_values(launch: Launch, index: int) -> None:
    """Give a run its values; raises RunError and OSError."""
    with open_study(launch) as study:
        study.assign_trial(index)


def report_end(launch: Launch, index: int) -> str:
    """Report to the study how a run has ended, if it has; return what the user should know.

    Raises RunError and OSError.
    """
    (record,) = read_run_records(launch, [index])
    if not record.state.ended or record.state in _MAY_GO_ON:
        return ""
    with open_study(launch) as study:
        return study.report_outcome(record)


def load_trial(launch: Launch, index: int) -> tuple[optuna.Trial, set[int]]:
    """Return a run's trial, to report values to, and the steps that already have one."""
    given = read_trial(launch.paths.run(index).trial)
    assert given is not None, "an attempt begins by asking"  # noqa: S101
    study = load_study(launch, read_search_space(launch.paths))
    frozen = study.get_trials(deepcopy=False)[given.number]
    # What an earlier round reported stands: Optuna accepts one value per step.
    trial = optuna.Trial(study, frozen._trial_id)  # noqa: SLF001  # as in OpenStudy
    return trial, set(frozen.intermediate_values)


def _restore_sampler(path: Path, seed: int, number: int, *, fresh: bool) -> BaseSampler:
    """Return a sampler for trial `number`, with its generators where trial `number - 1` left them.

    If that is unknown (a process was killed while it asked), or the trial is not `fresh`, they
    start again from the seed and the number, so that no trial repeats another's.
    """
    states = _read_sampler_state(path, number) if fresh and number else None
    if states is None and not (fresh and number == 0):
        seed = (seed + _FAR_APART * (number + 1)) % 2**32
    sampler = TPESampler(seed=seed, constant_liar=True)
    for name, state in (states or {}).items():
        kind, keys, *rest = state
        _list_random_generators(sampler)[name].set_state((kind, keys, *rest))
    return sampler


def _store_sampler_state(path: Path, sampler: BaseSampler, number: int) -> None:
    """Store the state of the generators after trial `number`.

    As JSON, for the trial after the one at which it was stored.
    """
    states = {}
    for name, generator in _list_random_generators(sampler).items():
        kind, keys, *rest = generator.get_state()
        states[name] = [kind, keys.tolist(), *rest]
    write_json(path, {"v": _STATE_VERSION, "after": number, "states": states})


def _keep_sampler_state_for_trial(path: Path, number: int) -> None:
    """Note that trial `number` needed no random numbers."""
    states = _read_sampler_state(path, number)
    if states is not None:
        write_json(path, {"v": _STATE_VERSION, "after": number, "states": states})


def _read_sampler_state(path: Path, number: int) -> dict[str, Any] | None:
    try:
        kept = read_json(path)
        return dict(kept["states"]) if kept["after"] == number - 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _list_random_generators(sampler: Any) -> dict[str, Any]:
    """Return the sampler's generators (optuna 5: it has one, and one for its first trials)."""
    return {"own": sampler._rng.rng, "first": sampler._random_sampler._rng.rng}  # noqa: SLF001  # Optuna has no public way to keep them
