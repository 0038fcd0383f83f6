"""One loop over steps: where it begins, what happens at its boundaries, and how it ends.

Joins a loop's step boundary with the checkpoints of the registered state. It knows nothing of the
user's code, of metrics, or of the receivers of step messages.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

from hpckit.errors import NonFiniteLossError, UsageError
from hpckit.model.failure import ExitReason, ExitStatement, StateKept
from hpckit.model.parallel.sample_order import Position
from hpckit.runtime.rank.step_boundary import StepBoundary
from hpckit.runtime.rank.step_times import StepTimes
from hpckit.runtime.rank.trained_steps import TrainedSteps
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpckit.runtime.rank.checkpointing import StepCheckpoints

REPEATED = (
    "run.steps() was called again, with step numbers that the run already had: metrics "
    "have two rows for a step, and progress shows one loop; loop over all steps in one "
    "run.steps(), or continue after them with run.steps(total, start=...)"
)


@dataclass(slots=True, kw_only=True)
class StepLoop:
    """The steps up to `total`. `checkpoints` is None if nothing is registered.

    `batch_fraction` is which part of a batch each step has; `grace` how long ranks that were asked
    to leave try to save. `begun` is the last step that began; `ended_at` the step before which all
    ranks ended the loop. A step is done when the loop comes round to its end, and `trained` does
    not say that it is still to be trained. `taken` is true once the loop has taken all steps.
    """

    total: int
    samples_per_step: int
    batch_fraction: Fraction = Fraction(1)
    boundary: StepBoundary
    checkpoints: StepCheckpoints | None
    logger: logging.Logger
    grace: timedelta
    trained: TrainedSteps = field(default_factory=TrainedSteps)
    times: StepTimes = field(default_factory=StepTimes)
    start: Position = field(default_factory=lambda: Position(step=0))
    begun: int | None = field(default=None, init=False)
    ended_at: int | None = field(default=None, init=False)
    taken: bool = field(default=False, init=False)
    thread: threading.Thread = field(default_factory=threading.current_thread, init=False)
    """The one that loops."""
    failed: BaseException | None = field(default=None, init=False)
    """What ended that thread: Python prints it, and the script goes on to its end."""

    def __post_init__(self) -> None:
        if self.thread is not threading.main_thread():
            self._hook_failure_of_loop_thread(threading.excepthook)

    def _hook_failure_of_loop_thread(self, usual: Callable[[threading.ExceptHookArgs], object]) -> None:
        def note_thread_failure(told: threading.ExceptHookArgs) -> None:
            if told.thread is self.thread:
                self.failed = told.exc_value
            usual(told)

        threading.excepthook = note_thread_failure

    def restore(self) -> range:
        """Load the newest good checkpoint, if there is one; return the remaining steps."""
        if self.checkpoints is not None:
            self.start = self.checkpoints.restore(self.start)
            if self.start.step >= self.total and self.boundary.info.rank == 0:
                told = "nothing is left to do: the restored state is of step=%d, of %d in all"
                self.logger.warning(told, self.start.step, self.total)
        return range(self.start.step, self.total)

    def position_before(self, step: int) -> Position:
        """Return what had been done before this step."""
        done = max(step - self.start.step, 0)
        return Position(
            step=step,
            samples=self.start.samples + done * self.samples_per_step,
            batches=self.start.batches + done * self.batch_fraction,
        )

    def save_and_leave_as_agreed(self, step: int, *, veto: bool) -> ExitStatement | None:
        """Cross the boundary before a step; save and leave as all ranks agree.

        Return the exit statement if the ranks leave, None if the loop continues. If any rank has a
        `veto`, nothing is saved, because the state is useless.
        """
        checkpoints = self.checkpoints
        self.trained.update_trained_steps(step - 1)
        done = step - self.trained.lead
        wanted = checkpoints is not None and checkpoints.is_save_due(step)
        within = None if checkpoints is None else checkpoints.save_interval.steps_until_due(step)
        with self.times.count_as_waiting():
            agreed = self.boundary.agree_on_actions_before_step(
                step, save=wanted, veto=veto, waits=self.trained.open, within=within
            )
        if agreed.prune and not agreed.leave:
            self.logger.info("left before step=%d: pruned", step)
            self._close_checkpoints(step)
            return self.build_exit_statement(ExitReason.pruned)
        if agreed.save and checkpoints is not None:
            with self.times.count_as_saving():
                checkpoints.save(self.position_before(done), wait=agreed.leave, patience=self.grace)
        if agreed.leave:
            who = self.boundary.signal or self.boundary.told_by
            self.logger.info("left before step=%d: asked to stop by %s", done, who)
            self.ended_at = done
            if checkpoints is not None:
                checkpoints.record_orderly_leave()
            return self.build_exit_statement(ExitReason.left)
        self.begun = step
        self.trained.record_step_taken()
        return None

    def end_after_all_steps(self, *, veto: bool) -> None:
        """End the loop, which has taken all steps, unless they wait to be trained.

        Raises the same errors as `end_loop`.
        """
        self.trained.update_trained_steps(self.total - 1)
        self.taken = True
        waits = self.trained.open or self.trained.lead > 0
        self.end_loop(max(self.total, self.start.step), veto=veto, waits=waits)

    def end_loop(self, step: int, *, veto: bool, within_step: bool = False, waits: bool = False) -> None:
        """End the loop before this step, or within it, on all ranks at once; save the final state.

        If steps wait on any rank, nothing ends yet. Raises UsageError if ranks end it at different
        steps, and NonFiniteLossError if any rank has a `veto`: nothing is saved then, and a run
        without its state has not completed.
        """
        self.trained.alone.warn_if_ranks_train_alone(last=True)
        if self.checkpoints is not None:
            vetoed, waiting = self.boundary.agree_to_end(step, veto=veto, waits=waits)
            if waiting:
                return
            if vetoed:
                self.checkpoints.wait_for_save()
                raise non_finite_loss_error(
                    f"the last loss before step {step} was not finite: the state is not saved, and "
                    "the checkpoints from before stay"
                )
            with self.times.count_as_saving():
                self.checkpoints.save(self.position_before(step), wait=True, within_step=within_step)
        self._close_checkpoints(step)

    def end_within_last_step(self, *, veto: bool) -> None:
        """End the loop within the last step that began, unless it has ended: `break`, `return`.

        How much of that step was done is unknown: `zip` may have found no data for it. So it does
        not count, and a run that continues from the saved state repeats it. But if the loop had
        taken all steps, they are trained now that the user's code has returned. Collective if
        something is registered. Raises the same errors as `end_loop`, and what ended its thread.
        """
        if self.failed is not None:
            raise self.failed
        if self.ended_at is not None:
            return
        if self.taken or self.begun is None:
            self.end_loop(self.total if self.taken else self.start.step, veto=veto)
        else:
            done = max(self.begun - self.trained.lead, self.start.step)
            self.end_loop(done, veto=veto, within_step=True)

    def build_exit_statement(self, reason: ExitReason) -> ExitStatement:
        """Return the exit statement of a rank that leaves for this reason."""
        left = reason is ExitReason.left
        # The last one that was done; the begun one as long as the loop has not ended.
        step = self.begun if self.ended_at is None else self.ended_at - 1
        return ExitStatement(
            reason=reason,
            told_by=self.boundary.told_by if left else None,
            signal=self.boundary.signal if left else None,
            kept=self._find_if_state_was_saved(),
            step=step if step is None or step >= 0 else None,
            total=self.total,
        )

    def _find_if_state_was_saved(self) -> StateKept:
        if self.checkpoints is None:
            return StateKept.nothing
        safe = self.ended_at is not None and self.checkpoints.has_saved_step(self.ended_at)
        return StateKept.saved if safe else StateKept.unsaved

    def _close_checkpoints(self, step: int) -> None:
        self.ended_at = step
        if self.checkpoints is not None:
            self.checkpoints.record_orderly_leave()
            self.checkpoints.close()


def non_finite_loss_error(told: str) -> NonFiniteLossError:
    """Return the error for a run whose last loss was not finite."""
    return NonFiniteLossError(
        told,
        hint="`hpckit resume` continues from the newest checkpoint, if there is one; with "
        "recovery.nan_patience=0 a run completes and saves its state whatever the loss was",
    )


def registered_too_late_error(names: Iterable[str]) -> UsageError:
    """Return the error for names that are registered during the loop or after it."""
    return UsageError(
        f"run.state({'=…, '.join(names)}=…) came after run.steps() had begun: checkpoints hold "
        "what was registered before, and are restored when the loop begins",
        hint="call run.state() with all objects before the loop over run.steps()",
    )


def nothing_saved_warning(*, again: bool) -> str:
    """Return what to warn of in a loop without registered state; `again` in a restart."""
    if again:
        return "began again at step 0: no state is registered with run.state()"
    return "no state is registered with run.state(): nothing is saved, and a restart begins at step 0"


def never_saved_error(names: Iterable[str]) -> UsageError:
    """Return the error for registered names that no loop over steps ever saved."""
    return UsageError(
        f"run.state() registered {', '.join(names)}, but none of it was saved: the code came to "
        "its end without run.steps()",
        hint="loop over `run.steps(total)`: checkpoints are made between its steps",
    )


def unknown_position_error(start: int) -> UsageError:
    """Return the error for a start whose samples cannot be counted."""
    return UsageError(
        f"run.steps(start={start}) with parallel.batch=scale: the samples of the steps before it are unknown",
        hint="register state with run.state(), whose checkpoints know it, or take parallel.batch=keep",
    )


def check_weights_used(path: str | None, registered: object) -> None:
    """Raise UsageError for a file of weights if nothing is registered that could take them."""
    if path is not None and not registered:
        raise UsageError(
            f"checkpoint.weights={path} is set, but no model is registered to load it",
            hint="register the model, run.state(model=…), and loop over run.steps()",
        )
