"""A launch of one run that answers by a file: started, waited for, read, and removed.

It takes the path of every other launch, so that it meets, and reports, the same obstacles.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar

from hpckit.context import Context
from hpckit.errors import HpckitError, RunError
from hpckit.model.plain import from_plain
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations import launch as launching
from hpckit.operations.next_step import launch_reference, say_runs_continue_on_ctrl_c
from hpckit.operations.prepare import Prepared
from hpckit.operations.remove_launches import plan_launch_removals, remove_launch
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch
from hpckit.record.logs import find_logs_without_rank_logs, read_whole_log
from hpckit.record.store import open_regular_file
from hpckit.values import dataclass
from hpckit.views.poller import PollBackoff, Poller

T = TypeVar("T")

PLAIN_RUN = (
    *("parallel=none", "recovery=never", "observe=off", "notify=none", "tracker=none"),
    *("preflight=off", "checkpoint=run_folder"),
    *("resources.min_nodes=null", "resources.spare_nodes=0"),
)
"""Nothing watches, repeats or announces the run, and nothing is kept of it."""

_GROUPS = lazy_pattern(r"[+~]{0,2}(parallel|recovery|preflight|observe|notify|tracker|checkpoint)[=.]")
_TASK = lazy_pattern(r"\+{0,2}(entry_point|command)=")
_TIME = lazy_pattern(r"\+{0,2}resources\.timeout_min=")
_RHYTHM = PollBackoff(
    first=timedelta(seconds=5), longest=timedelta(seconds=30), shortest=timedelta(seconds=2)
)
_POLL_S = 0.5
_REMOVAL_LOOKS, _REMOVAL_S = 20, 1.0
"""A job may stay in Slurm's queue for seconds after its end."""
_LATE_LOOKS = 20
"""A network file system may show a new file seconds after the run that wrote it has ended."""
_SHOWN_LINES = 6
_NO_HPCKIT = lazy_pattern(r"No module named '?hpckit\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer(Generic[T]):
    """What a run wrote, when that was first seen, and how the run ended."""

    value: T
    seen_at: datetime
    view: RunView


def drop_task_and_watch_overrides(overrides: Sequence[str], *, timeout_min: int) -> list[str]:
    """Return the overrides that may stay, and a time limit if they have none.

    What says how a run is watched, or what it does, goes.
    """
    kept = [override for override in overrides if not (_GROUPS.match(override) or _TASK.match(override))]
    if not any(_TIME.match(word) for word in kept):
        kept.append(f"resources.timeout_min={timeout_min}")
    return kept


@contextmanager
def launch_and_await_answer(
    prepared: Prepared, context: Context, read: Callable[[Launch], T | None], what: str, doing: str
) -> Iterator[tuple[Launch, RunAnswer[T]]]:
    """Launch, wait, and yield the launch with its answer; it is removed after the block.

    `read` returns the answer, None before there is one; `what` names it, as in "wrote no facts";
    `doing` says what for, as in "looking at a node". Raises RunError if the run ended without an
    answer: its launch stays, and is named. Ctrl-C leaves the job and says how to cancel it.
    """
    started = launching.start_launch(prepared, context)
    launch = started.launch
    context.note(f"{doing} by {launch.id}, {started.where}; Ctrl-C stops waiting")
    with say_runs_continue_on_ctrl_c(launch, context):
        answer = await_answer_of_run(launch, context, read, what)
        yield launch, answer
        left = _remove_answered_launch(launch, answer.view, context)
    if left:
        context.note(f"warning: {launch.id} was not removed: {left}")


def await_answer_of_run(
    launch: Launch, context: Context, read: Callable[[Launch], T | None], what: str
) -> RunAnswer[T]:
    """Wait until the run has ended; return its answer. Raises RunError if it ended without one."""
    poller = Poller(launch=launch, context=context, rhythm=_RHYTHM)
    seen: tuple[T, datetime] | None = None
    late = _LATE_LOOKS
    while True:
        if seen is None and (value := read(launch)) is not None:
            seen = value, context.now()
        if poller.are_all_runs_over:
            (view,) = poller.views
            if seen is not None:
                return RunAnswer(value=seen[0], seen_at=seen[1], view=view)
            late -= 1
            if view.state is not RunState.completed or late <= 0:
                raise _missing_answer_error(launch, view, context, what)
        else:
            poller.poll_once()
        context.sleep(_POLL_S)


def read_answer_of_run(file: Path, kind: type[T], what: str, most_bytes: int) -> T | None:
    """Return what a run wrote; None before it did.

    Raises RunError if the file is not the caller's own, too long, or nothing of this kind.
    """
    try:
        with open_regular_file(file) as opened:
            own = os.fstat(opened.fileno()).st_uid == os.getuid()
            data = opened.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from error
    if not own:
        raise RunError(f"{file} belongs to another user", hint="it is not read; try again")
    if len(data) > most_bytes:
        raise RunError(f"{file} is longer than {most_bytes} bytes, the most that {what} may take")
    try:
        return from_plain(kind, json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError(
            f"{file} cannot be read as {what} of this version of hpckit: {error}",
            hint="is the hpckit of the node (cluster.python) the same version as the one here?",
        ) from error


def _missing_answer_error(launch: Launch, view: RunView, context: Context, what: str) -> RunError:
    """Return the error about a run that ended without an answer, with the end of the log.

    Without any log the node could not even write one: it does not see the launch folder.
    """
    job = view.record.job
    where = f"job {job}" if job else launch.id
    named = launch_reference(launch, context)
    logs = find_logs_without_rank_logs(launch, 0, job=job)
    said = [line for log in logs for line in read_whole_log(log.path).splitlines() if line.strip()]
    if view.state is RunState.cancelled:
        hint = f"`hpckit rm {named}` removes it"
        return RunError(f"{where} was cancelled before it wrote {what}", hint=hint)
    if said:
        end = "; ".join(said[-_SHOWN_LINES:])
        hint = f"`hpckit logs {named}` shows all; `hpckit rm {named}` removes it"
        if _NO_HPCKIT.search(end):
            hint = f"install hpckit for {launch.python}, or choose another: cluster.python"
        return RunError(f"{where} is {view.state}, and wrote no {what}: {end}", hint=hint)
    return RunError(
        f"{where} is {view.state}, and wrote neither {what} nor a log into {launch.folder}: its "
        "node probably does not see that folder, or cannot write there",
        hint="choose a folder that all nodes mount (output_dir, or $HPCKIT_OUTPUTS); "
        f"`hpckit status {named}` shows what Slurm says, `hpckit rm {named}` removes it",
    )


def _remove_answered_launch(launch: Launch, view: RunView, context: Context) -> str:
    """Remove the launch if its run is completed; return why not, empty if it is removed."""
    if view.state is not RunState.completed:
        return f"its run is {view.state}"
    why = ""
    for _ in range(_REMOVAL_LOOKS):
        try:
            (planned,) = plan_launch_removals([launch], context)
            if planned.refused is None:
                remove_launch(planned, context)
                return ""
            why = planned.refused
        except (HpckitError, OSError) as error:
            why = str(error)
        context.sleep(_REMOVAL_S)
    return why
