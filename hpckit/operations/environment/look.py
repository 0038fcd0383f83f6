"""Looks at a compute node through a launch of one run, which takes the path of every other run.

Launches, waits, reads what the run wrote, and removes the launch if it did. Imports Hydra.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from hpckit.config.command_word import literal_word
from hpckit.config.compose import compose
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import HpckitError, RunError, UsageError
from hpckit.model.environment.comparison import ClockOffset
from hpckit.model.environment.facts import EnvironmentFacts
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plain import from_plain
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations import launch as launching
from hpckit.operations.environment.collect import TOKEN_BYTES
from hpckit.operations.environment.node import token_file
from hpckit.operations.next_step import only_a_view, reference
from hpckit.operations.prepare import Prepared, prepare
from hpckit.operations.remove_launches import plan_removals, remove_launch
from hpckit.record.launches import Launch
from hpckit.record.logs import other_logs, read_text
from hpckit.record.store import make_folder, open_plain, write_text
from hpckit.views.poller import PollBackoff, Poller

MOST_BYTES = 2**20
"""Facts take a few thousand bytes; nothing longer is read."""

_FORCED = (
    *("parallel=none", "recovery=never", "observe=off", "notify=none", "tracker=none"),
    *("checkpoint=run_folder", "name=environment", "resources.nodes=1"),
    *("resources.min_nodes=null", "resources.spare_nodes=0", "resources.tasks_per_node=1"),
)
"""The run is one process on one node, and nothing is kept of it."""
_GROUPS = re.compile(r"[+~]{0,2}(parallel|recovery|observe|notify|tracker|checkpoint)[=.]")
_TASK = re.compile(r"\+{0,2}(entry_point|command)=")
_CHOICE = re.compile(r"\+{0,2}(experiment|entry_point|command)=")
_TIME = re.compile(r"\+{0,2}resources\.timeout_min=")
_TIMEOUT_MIN = 2
_RHYTHM = PollBackoff(
    first=timedelta(seconds=5), longest=timedelta(seconds=30), shortest=timedelta(seconds=2)
)
_POLL_S = 0.5
_REMOVAL_LOOKS, _REMOVAL_S = 20, 1.0
"""A job may stay in Slurm's queue for seconds after its end."""
_LATE_LOOKS = 20
"""A network file system may show a new file seconds after the run that wrote it has ended."""
_SHOWN_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a compute node told of itself, the token it was to read, and what is known of clocks.

    `left` is why the launch was not removed, empty if it was.
    """

    facts: EnvironmentFacts
    token: str
    clock: ClockOffset
    left: str = ""


def compose_asked(request: ComposeRequest) -> LaunchConfig:
    """Return the settings that a launch with these words would have; raises ConfigError.

    Words that choose nothing to run get a command, so that no experiment need be complete.
    """
    chosen = request.command or any(_CHOICE.match(word) for word in request.overrides)
    points = compose(request if chosen else replace(request, command=("true",)))
    if len(points) != 1:
        raise UsageError(
            f"these words make {len(points)} runs; doctor --env looks at the node of one",
            hint="leave out -m, values with commas, and stages",
        )
    return points[0].settings


def prepare_look(
    request: ComposeRequest,
    settings: LaunchConfig,
    words: Sequence[str],
    context: Context,
    *,
    quiet: bool,
) -> Prepared:
    """Return the launch that looks at a node of the cluster which `settings` choose."""
    python = settings.cluster.python or sys.executable
    kept = [one for one in request.overrides if not (_GROUPS.match(one) or _TASK.match(one))]
    cpus = settings.resources.tasks_per_node * settings.resources.cpus_per_task
    forced = [*_FORCED, f"resources.cpus_per_task={cpus}"]
    if settings.entry_point is not None:
        forced.append("entry_point=null")
    if not any(_TIME.match(word) for word in kept):
        forced.append(f"resources.timeout_min={_TIMEOUT_MIN}")
    own = replace(
        request,
        overrides=(*kept, *forced),
        command=(python, "-m", "hpckit", "node-facts"),
    )
    return prepare(own, words, context, quiet=quiet)


def look_at_node(prepared: Prepared, context: Context) -> NodeAnswer:
    """Launch, wait for the facts of the node, and remove the launch.

    Raises RunError if the run ended without facts: its launch stays, and is named. Ctrl-C leaves
    the job and says how to cancel it.
    """
    folder = Path(prepared.plan.folder)
    with _token(folder) as token:
        began = context.now()
        started = launching.start_launch(prepared, context)
        launch = started.launch
        context.note(f"looking at a node by {launch.id}, {started.where}; Ctrl-C stops waiting")
        with only_a_view(launch, context):
            facts, at, view = _await(launch, context)
            clock = _offset(facts.at, began, at)
            completed = view.state is RunState.completed
            left = _remove(launch, context) if completed else f"its run is {view.state}"
    return NodeAnswer(facts=facts, token=token, clock=clock, left=left)


@contextmanager
def _token(folder: Path) -> Iterator[str]:
    """Write the token file beside the launch folder to be; remove it in the end."""
    token, file = secrets.token_hex(TOKEN_BYTES // 8), token_file(folder)
    try:
        make_folder(folder.parent)
        write_text(file, token)
    except OSError as error:
        raise UsageError(
            f"{folder.parent} cannot be written: {error.strerror or error}",
            hint="choose another folder for launches: output_dir, or $HPCKIT_OUTPUTS",
        ) from error
    try:
        yield token
    finally:
        file.unlink(missing_ok=True)


def _await(launch: Launch, context: Context) -> tuple[EnvironmentFacts, datetime, RunView]:
    """Wait until the run has ended; return the node's facts, when they were first seen, its end."""
    poller = Poller(launch=launch, context=context, rhythm=_RHYTHM)
    seen: tuple[EnvironmentFacts, datetime] | None = None
    late = _LATE_LOOKS
    while True:
        if seen is None and (facts := read_node_facts(launch)) is not None:
            seen = facts, context.now()
        if poller.over:
            (view,) = poller.views
            if seen is not None:
                return (*seen, view)
            late -= 1
            if view.state is not RunState.completed or late <= 0:
                raise _without_facts(launch, view, context)
        else:
            poller.look()
        context.sleep(_POLL_S)


def read_node_facts(launch: Launch) -> EnvironmentFacts | None:
    """Return what the run of this launch wrote; None before it did.

    Raises RunError if the file is not the caller's own, too long, or no facts.
    """
    file = launch.paths.run(0).node_facts
    try:
        with open_plain(file) as opened:
            own = os.fstat(opened.fileno()).st_uid == os.getuid()
            data = opened.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from error
    if not own:
        raise RunError(f"{file} belongs to another user", hint="it is not read; look again")
    if len(data) > MOST_BYTES:
        raise RunError(f"{file} is longer than {MOST_BYTES} bytes, and no file of facts is")
    try:
        return from_plain(EnvironmentFacts, json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError(
            f"{file} holds no facts of this version of hpckit: {error}",
            hint="is the hpckit of the node (cluster.python) the same version as the one here?",
        ) from error


def _without_facts(launch: Launch, view: RunView, context: Context) -> RunError:
    """Return the error about a run that ended without facts, with the end of the log that says why.

    Without any log the node could not even write one: it does not see the launch folder.
    """
    job = view.record.job
    where = f"job {job}" if job else launch.id
    named = reference(launch, context)
    logs = other_logs(launch, 0, job=job)
    said = [line for log in logs for line in read_text(log.path).splitlines() if line.strip()]
    if said:
        end = "; ".join(said[-_SHOWN_LINES:])
        hint = f"`hpckit logs {named}` shows all; `hpckit rm {named}` removes it"
        return RunError(f"{where} is {view.state}, and wrote no facts: {end}", hint=hint)
    return RunError(
        f"{where} is {view.state}, and wrote neither facts nor a log into {launch.folder}: its "
        "node probably does not see that folder, or cannot write there",
        hint="choose a folder that all nodes mount (output_dir, or $HPCKIT_OUTPUTS); "
        f"`hpckit status {named}` shows what Slurm says, `hpckit rm {named}` removes it",
    )


def _offset(node: datetime, submitted: datetime, seen: datetime) -> ClockOffset:
    return ClockOffset(
        least_s=(node - seen).total_seconds(), most_s=(node - submitted).total_seconds()
    )


def _remove(launch: Launch, context: Context) -> str:
    """Remove the launch; return why not, if it stays."""
    why = ""
    for _ in range(_REMOVAL_LOOKS):
        try:
            (planned,) = plan_removals([launch], context)
            if planned.refused is None:
                remove_launch(planned, context)
                return ""
            why = planned.refused
        except (HpckitError, OSError) as error:
            why = str(error)
        context.sleep(_REMOVAL_S)
    return why


def is_on_slurm(settings: LaunchConfig) -> bool:
    """Return whether runs with these settings go to another node."""
    return settings.cluster.kind is ClusterKind.slurm


def output_override(folder: Path) -> str:
    """Return the override that sets the folder of launches, in Hydra's grammar."""
    return f"output_dir={literal_word(str(folder))}"
