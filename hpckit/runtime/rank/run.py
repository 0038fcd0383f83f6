"""`Run`, the object that the user's code gets: identity, folders, steps and metrics of one rank."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpckit.errors import UsageError
from hpckit.model import messages
from hpckit.model.failure import ExitReason, ExitStatement, StateKept
from hpckit.model.goodput import SaveCost
from hpckit.model.parallel.sample_order import Position
from hpckit.planning.recovery.ends import LEFT_CODE
from hpckit.record.metrics.log import RUN_STEP
from hpckit.runtime.data.batches import Batches, BatchOptions, RunBatches
from hpckit.runtime.environ import await_staged_data, copy_environment
from hpckit.runtime.rank import steps as loops
from hpckit.runtime.rank.config import Config
from hpckit.runtime.rank.fault_injector import FaultInjector
from hpckit.runtime.rank.live_run import LiveRun, to_plain_metric
from hpckit.runtime.rank.parameters import (
    build_layout_message,
    check_state_object,
    warn_of_unregistered_optimizers,
)
from hpckit.runtime.rank.step_boundary import StepBoundary
from hpckit.runtime.rank.step_profiler import StepProfiler
from hpckit.runtime.rank.step_times import StepTimes, TimedBatches, make_step_times
from hpckit.runtime.rank.steps import StepLoop
from hpckit.runtime.rank.trained_steps import LoneRanks, TrainedSteps
from hpckit.runtime.stages import EarlierRun, RunStage
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    from hpckit.runtime.rank.checkpointing import StepCheckpoints

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, repr=False)
class Run(LiveRun):
    """One rank's view of its run.

    `folder` is the run's folder, shared by all ranks and attempts; `attempt_folder` belongs to this
    attempt; `code_folder` holds the frozen code; `project_folder` is where the code was launched
    from. `step` is the current step of the loop, `samples` the number of samples that all ranks
    together had seen before it. `layout` has the sizes of all axes of parallelism.
    """

    config: Config
    folder: Path
    attempt_folder: Path
    checkpoint_dir: Path
    code_folder: Path
    project_folder: Path
    logger: logging.Logger
    attempt: int = 0
    round: int = 0
    save_cost: SaveCost | None = None
    notice_grace: timedelta = timedelta(seconds=15)
    nan_patience: int = 0
    registered: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    _keeps_state: bool = True
    _stage: RunStage | None = None
    _checkpoints: StepCheckpoints | None = None
    _loop: StepLoop | None = None
    _stepping: bool = False
    _injector: FaultInjector = field(default_factory=lambda: FaultInjector(marks=Path(), due={}))
    _batches: RunBatches = field(default_factory=RunBatches)
    _measures_steps: bool = False
    _times: StepTimes = field(default_factory=StepTimes)
    _profiler: StepProfiler = field(default_factory=StepProfiler)

    def __post_init__(self) -> None:
        self._metrics.folder, self._metrics.patience = self.attempt_folder, self.nan_patience
        self._metrics.warn = self._warn_once
        self._profiler.apart, self._profiler.tell = self.unwatched, self._send_to_agent

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world_size} on {self.device}"
        return f"<Run {place}, attempt {self.attempt}, step {self.step}, folder {self.folder}>"

    def batches(  # noqa: PLR0913  # each is one of torch's DataLoader, but the name
        self,
        dataset: Any,
        *,
        batch_size: int,
        workers: int = 0,
        shuffle: bool | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        name: str | None = None,
    ) -> Batches:
        """Return the batches of a dataset, one for each step: `next(batches)` in `run.steps()`.

        Each is this rank's share of a batch of `batch_size` samples of all ranks. It follows from
        the seed and the step: restarts and the numbers of ranks and workers do not change it.
        `dataset` has `__getitem__` and `__len__`, or is an IterableDataset, which keeps its own
        order. Else each epoch has an order of its own, unless `shuffle` is False; its last batch
        continues in the next epoch, or with `drop_last` is left out if it is not whole. `workers`
        processes of each rank read ahead. `collate` is torch's `collate_fn`. Several have
        orders and random numbers of their own, by `name`, or by the number of the call.

        Example: `batches = run.batches(dataset, batch_size=256, workers=4)`. Raises UsageError.
        """
        options = BatchOptions(
            batch_size=batch_size,
            workers=workers,
            shuffle=shuffle,
            drop_last=drop_last,
            collate=collate,
            name=name,
        )
        return self._batches.add_batches(dataset, options, self, self.step if self._stepping else None)

    def batches_before(self, step: int) -> Fraction:
        """Return how many batches of the size asked for all steps before this one had.

        With `parallel.batch=keep` that is `step`. Before `steps()` it is counted as if the run had
        always had the ranks that it has.
        """
        if self._loop is None:
            return step * self.batch_fraction
        return self._loop.position_before(step).batches

    def data(self, name: str) -> Path:
        """Return where the data of `data.stage.NAME` is on this node; wait for what comes in the background.

        Raises UsageError if there is none of this name, or if it could not be brought here.
        """
        return await_staged_data(name, copy_environment())

    @property
    def stage(self) -> str | None:
        """Name of this run's stage; None if the launch has no stages."""
        return None if self._stage is None else self._stage.name

    def earlier(self, stage: str) -> tuple[EarlierRun, ...]:
        """Return the runs of an earlier stage that this run belongs with: folder, checkpoint_dir.

        If that stage has the same sweep, this is the run of the same point; otherwise all its runs.
        Raises UsageError if there is no such stage.
        """
        if self._stage is None:
            raise UsageError("this launch has no stages", hint="an experiment names them: `stages`")
        return self._stage.earlier(stage)

    def state(self, **objects: Any) -> None:
        """Register the training state by name: model, optimizer, scheduler, ….

        Every object needs `state_dict` and `load_state_dict`. A model has the weights of
        `checkpoint.weights` from here on. Raises TypeError for an object without them and for a
        name that is registered twice, UsageError if `steps()` has already begun, for a data loader
        with more than one rank, and for the model within an `AveragedModel`.
        """
        if self._loop is not None:
            raise loops.registered_too_late_error(objects)
        for name, value in objects.items():
            check_state_object(name, value, self.world_size)
            if name in self.registered:
                raise TypeError(f"run.state({name}=…) was already called with that name")
        for name, value in objects.items():
            self._load_initial_weights(value, name)
        self.registered |= objects
        self.start_hang_watch()

    def steps(self, total: int, *, start: int | None = None, samples_per_step: int = 0) -> Iterator[int]:
        """Yield the numbers of the remaining steps, up to `total - 1`.

        If `state()` registered something, load the newest good checkpoint first and continue from there;
        otherwise from `start`, for code that restored state of its own. Between two steps is a step boundary:
        state is saved there, and after a notice all ranks leave there together (SystemExit is raised out of
        the loop). `samples_per_step`, counted over all ranks, keeps `run.samples` correct, and tells the
        energy of a sample; by default that of the `batches()` made before.

        Raises RuntimeError on a second loop over registered state, and CheckpointError.
        """
        self._check_loop_allowed(start)
        loop = self._begin_step_loop(total, start, samples_per_step or self._batches.total_batch_size)
        self._stepping = True
        try:
            with loop.boundary.treat_signals_as_leave_requests():
                for step in loop.restore():
                    self.samples = loop.position_before(step).samples
                    self._leave_if_agreed(
                        loop.save_and_leave_as_agreed(step, veto=self._metrics.bad_losses > 0)
                    )
                    self._profiler.begin_due_profile(step)
                    self._times.begin_step(step)
                    self._report_step(step, total)
                    self._injector.inject_due_faults(step)
                    yield step
                    self._profiler.end_due_profile(step)
                self._times.end_last_step()
                self._profiler.finish_profiles()
                # Before groups of ranks are closed, whose sockets forked workers hold open.
                self._batches.close()
                self._send_to_agent(messages.Working(over=True))
                self.samples = loop.position_before(max(total, loop.start.step)).samples
                loop.end_after_all_steps(veto=self._vetoes_final_save())
        finally:
            self._batches.close()
            self._profiler.stop_recording()
            self._stepping = False
            self._times.forget_unreported()
            self._send_to_agent(messages.Working(over=True))

    def _check_loop_allowed(self, start: int | None) -> None:
        """Raise what speaks against a loop over steps; warn of what is not saved or counted."""
        # Also if the first one found nothing left to do: that was all of the restored state.
        if self.registered and self._loop is not None:
            raise RuntimeError(
                "run.steps() was already called, and run.state() holds state that it saves by "
                "step; loop over all steps of the run in one run.steps()"
            )
        if self._farewell is not None:
            raise SystemExit(LEFT_CODE)
        if start and self.batch_fraction != 1 and self._batches.made:
            raise loops.unknown_position_error(start)
        self.check_layout_in_use(self.registered.values())
        loops.check_weights_used(self.checkpoint.weights, self.registered)
        if self.is_main and self.step is None and start is None and not self.registered:
            # The first loop of ranks that replace earlier ones begins again.
            self._warn_once(loops.nothing_saved_warning(again=self.round > 0 or self.attempt > 1))
        elif self.is_main and self.step is not None and (start or 0) <= self.step:
            self._warn_once(loops.REPEATED)

    def _begin_step_loop(self, total: int, start: int | None, samples_per_step: int) -> StepLoop:
        self.start_hang_watch()
        self._profiler.finish_profiles()
        if self._measures_steps:
            self._times = make_step_times(
                self.info,
                self.device,
                lambda steps: self._send_to_agent(messages.StepsTimed(steps=steps)),
                samples_per_step=samples_per_step,
            )
        registered = self.registered.values()
        if self._loop is None:
            self._send_to_agent(build_layout_message(self.rank, self.layout, registered, self._pairs))
        trained = TrainedSteps(warn=self._warn_once) if self.is_main else TrainedSteps()
        trained.watch_optimizers(registered)
        if self.is_main and self.world_size > 1 and self._made is None:
            trained.alone = LoneRanks(registered, self._warn_once, lambda: self._means)
        first = start or 0
        self._loop = StepLoop(
            total=total,
            trained=trained,
            samples_per_step=samples_per_step,
            batch_fraction=self.batch_fraction,
            boundary=StepBoundary(
                info=self.info,
                link=self._link,
                profile=self._profiler.accept_profile_request,
                patience_s=self.notice_grace.total_seconds() / 3,
            ),
            times=self._times,
            checkpoints=self._checkpoints or (self._open_checkpoints() if self.registered else None),
            logger=self.logger,
            grace=self.notice_grace,
            start=Position(step=first, batches=first * self.batch_fraction),
        )
        self._batches.check_ranks_made_same_batches(self._loop.boundary.is_same_on_all_ranks)
        return self._loop

    def _leave_if_agreed(self, farewell: ExitStatement | None) -> None:
        if farewell is None:
            return
        self._times.end_last_step()
        if self._metrics.bad_losses and farewell.kept is StateKept.unsaved:
            self._warn_once("its state was not saved, as its last loss was not finite")
        self._send_exit_statement(farewell)
        self._profiler.drop_profiles()
        raise SystemExit(0 if farewell.reason is ExitReason.pruned else LEFT_CODE)

    def _vetoes_final_save(self) -> bool:
        if self._metrics.bad_losses and not self.nan_patience and self.registered:
            self._warn_once("its last state is saved although its last loss was not finite")
        return self._metrics.bad_losses > 0 and self.nan_patience > 0

    def finish(self) -> None:
        """Report that the user's code has finished; end and save a loop that it broke out of.

        hpckit calls this itself. Raises UsageError if ranks broke out at different steps, or if
        state was registered and no loop over `steps()` ever saved it, and NonFiniteLossError.
        """
        if self._farewell is not None:
            return
        farewell = ExitStatement(reason=ExitReason.returned)
        if self._loop is not None:
            self._profiler.finish_profiles()
            self._loop.end_within_last_step(veto=self._vetoes_final_save())
            farewell = self._loop.build_exit_statement(ExitReason.returned)
        elif self.registered and self._keeps_state:
            raise loops.never_saved_error(self.registered)
        else:
            loops.check_weights_used(self.checkpoint.weights, self.registered)
        if self._vetoes_final_save():
            raise loops.non_finite_loss_error("the last loss was not finite")
        self._send_exit_statement(farewell)

    def _open_checkpoints(self) -> StepCheckpoints | None:
        if not self._keeps_state:
            if self.is_main:
                told = "state is not kept: attach(checkpoint_dir=...) names a folder outside hpckit"
                self.logger.info(told)
            return None
        # Imported here because runs that keep no state do not need it.
        from hpckit.runtime.rank import checkpointing  # noqa: PLC0415

        checkpointer = checkpointing.open_checkpointer(
            self.checkpoint_dir,
            self.checkpoint,
            epoch=self.attempt,
            seed=self.seed,
            layout=self.layout,
            may_commit=lambda: checkpointing.owns_run(self.attempt_folder, self.attempt, self.round),
        )
        checkpointer.tie(self._tied)
        return checkpointing.StepCheckpoints(
            checkpointer=checkpointer,
            objects=self.registered,
            save_interval=checkpointing.SaveInterval(settings=self.checkpoint, known=self.save_cost),
            logger=self.logger,
            patience=timedelta(seconds=self.checkpoint.patience_s),
            weights=self._make_weights_loader_once(),
            tell=self._send_to_agent if self.is_main else lambda _message: None,
            warn=self._warn_once if self.is_main else lambda _text: None,
            at_save=warn_of_unregistered_optimizers(self.registered, self._warn_once)
            if self.is_main
            else iter(()),
        )

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Mark work that takes longer than a step, such as an evaluation.

        Without this, a silence much longer than the run's steps counts as a hang.
        """
        self._send_to_agent(messages.Watched(on=False))
        try:
            with self._times.leave_time_out():
                yield
        finally:
            self._send_to_agent(messages.Watched(on=True))

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Measure how much of the steps a part of them takes: `with run.timed("data"):`.

        `data` is waiting for the next batch, and counts as that in verdicts; other names are your
        own phases, of which the first 16 are counted. Outside of a step loop nothing is measured.

        Raises UsageError for a name that is empty or longer than 40 characters.
        """
        return self._times.measure_phase(name)

    def timed_batches(self, loader: Iterable[T]) -> TimedBatches[T]:
        """Return the same batches, each waited for within `run.timed("data")`.

        Example: `for batch in run.timed_batches(loader):`. Its length is that of `loader`. Raises
        UsageError for what cannot be looped over.
        """
        return TimedBatches(loader, self.timed)

    def log(self, *, step: int | None = None, **metrics: Any) -> None:
        """Record metrics: numbers, strings or one-element tensors. Only rank 0 writes them.

        `step` defaults to the current step of `steps()`. The last value under a name is the run's result
        under that name. A metric named `loss` is watched: while it is not finite, no checkpoint is saved, and
        after `recovery.nan_patience` such values in a row NonFiniteLossError is raised. Rows that cannot be
        written to disk are dropped, and a warning reports them.
        """
        if not self._stepping:
            self._send_heartbeat(over=self._loop is not None)
        if self._loop is not None:
            self._loop.trained.worked = True
        if not self.is_main:
            return
        if self._injector.poisoned and "loss" in metrics:
            metrics["loss"] = math.nan
        at = self.step if step is None else to_plain_metric("step", step)
        values = {name: to_plain_metric(name, value) for name, value in metrics.items()}
        mine = {} if self.step in {None, at} else {RUN_STEP: self.step}
        self._metrics.append_metrics_row({"step": at, "round": self.round, **mine}, values)
        if (report := self._metrics.choose_metrics_to_report(at, values)) is not None:
            self._send_to_agent(report)
        if "loss" in values:
            self._metrics.refuse_non_finite_losses(values["loss"], self.step)
