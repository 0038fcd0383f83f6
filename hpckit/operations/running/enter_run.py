"""Replaces this process by a shell or command next to a running run, in its Slurm job or locally.

Finds the run, job and node; runtime/run_shell sets up the environment on the node.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.record.launches import Launch, load_run_settings, read_launch_history
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.runtime.run_shell import restore_default_signals
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.running_job import ask_raw_job_id, build_overlapping_srun
from hpckit.values import dataclass
from hpckit.views.awaited_answer import find_single_running_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntrance:
    """Where to start a program; `job` and `node` are None if the run is not on Slurm.

    A None `node` with a job lets Slurm choose: the run has not begun a round yet.
    """

    launch: Launch
    view: RunView
    job: str | None
    node: str | None

    @property
    def description(self) -> str:
        """The entrance in words."""
        record = self.view.record
        where = this_host() if self.job is None else f"{self.node or 'a node'} of job {self.job}"
        return f"{record.id}, attempt {record.attempt}, on {where}"


def locate_running_run(selection: Selection, node: str | None, context: Context) -> RunEntrance:
    """Return where the selected run is running; raises UsageError if it is not running now."""
    view = find_single_running_run(selection, context, "entered")
    launch = selection.launch
    if launch.cluster.kind is not ClusterKind.slurm:
        _check_run_is_here(launch, view, node)
        return RunEntrance(launch=launch, view=view, job=None, node=None)
    if view.record.job is None:
        raise UsageError(f"the Slurm job of run {view.record.id} is not known")
    nodes = _list_run_nodes(launch, view)
    if node is not None and node not in nodes:
        raise UsageError(
            f"run {view.record.id} is not on node {node!r}; it is on {', '.join(nodes) or 'none'}",
            hint=f"name one of them: --node {nodes[0]}" if nodes else "leave --node out",
        )
    first = view.record.nodes[:1] if view.record.round is not None else ()
    return RunEntrance(launch=launch, view=view, job=view.record.job, node=node or next(iter(first), None))


def exec_shell_in_run(
    entrance: RunEntrance, words: Sequence[str], context: Context, *, terminal: bool
) -> NoReturn:
    """Replace this process by the command, or by a shell if `words` is empty.

    `terminal` is whether the program gets one. Raises SchedulerError, RunError.
    """
    launch, record = entrance.launch, entrance.view.record
    program = [
        *(launch.python, "-P", "-m", "hpckit.runtime.run_shell"),
        *(str(launch.folder), str(record.index), str(record.attempt), *words),
    ]
    if entrance.job is None:
        restore_default_signals()
        try:
            os.execve(program[0], program, dict(context.environ))  # noqa: S606  # no shell is the point
        except OSError as error:
            why = f"the Python of the launch cannot be run: {program[0]}: {error}"
            raise RunError(why) from error
    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
    resources = load_run_settings(launch, record.index)[0].resources
    step = build_overlapping_srun(
        ask_raw_job_id(entrance.job, commands),
        entrance.node,
        program,
        cpus=resources.tasks_per_node * count_cpus_per_rank(resources),
        terminal=terminal,
    )
    restore_default_signals()
    commands.exec_program("srun", *step)


def _list_run_nodes(launch: Launch, view: RunView) -> tuple[str, ...]:
    """Return the nodes of the run: those of its round first, then the spare ones."""
    record, seen = view.record, view.observation
    trained = record.nodes if record.round is not None else ()
    shared = read_launch_history(launch).find_job_of_run(record.index).shared_job is not None
    allocated = () if seen is None or shared else expand_hostlist(seen.nodes)
    return tuple(dict.fromkeys([*trained, *allocated]))


def _check_run_is_here(launch: Launch, view: RunView, node: str | None) -> None:
    host = view.record.supervisor[0] if view.record.supervisor else this_host()
    run = launch.paths.run(view.record.index).folder
    if host != this_host():
        raise UsageError(
            f"run {view.record.id} is on {host}, but this host is {this_host()}",
            hint=f"run there: hpckit shell {run}",
        )
    if node not in {None, host}:
        raise UsageError(f"run {view.record.id} is on {host}, not on node {node!r}")
