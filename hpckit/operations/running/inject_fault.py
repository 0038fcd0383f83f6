"""Injects one fault into a running run from outside: a signal, damage, or a request to Slurm.

Does not choose or record faults. Processes are signalled by a step on their node with Slurm, and
directly on this machine.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import RunError, SchedulerAwayError, UsageError
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.fault import ON_CHECKPOINTS, ON_NODES, ON_SANDBOX, SIGNALS, Fault, FaultKind, FaultTarget
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.run import RunRecord, RunView
from hpckit.record.launches import Launch, checkpoint_folder
from hpckit.record.process import this_host
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.manifest import NAME, Manifest
from hpckit.runtime.processes import ProcessQuery, signal_processes
from hpckit.slurm import running_job
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.values import dataclass

SANDBOX_VARIABLE = "HPCKIT_SANDBOX"
_SANDBOX_PATIENCE = timedelta(seconds=120)
_URGENT_S = 5.0
_MIDDLE = 0.5
_NUMBERS: Mapping[FaultKind, signal.Signals] = {
    FaultKind.kill: signal.SIGKILL,
    FaultKind.stop: signal.SIGSTOP,
    FaultKind.cont: signal.SIGCONT,
    FaultKind.term: signal.SIGTERM,
    FaultKind.segfault: signal.SIGSEGV,
    FaultKind.abort: signal.SIGABRT,
}


class MissedError(RunError):
    """There is nothing to hit at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScene:
    """The run that faults hit, as it is now. With `dry`, nothing is changed."""

    launch: Launch
    view: RunView
    settings: LaunchConfig
    context: Context
    sandbox: Path | None
    dry: bool

    @property
    def record(self) -> RunRecord:
        """The record of the run."""
        return self.view.record

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the latest round, else of the job; empty before either."""
        seen = self.view.observation
        if self.record.round is None and seen is not None and seen.nodes:
            return expand_hostlist(seen.nodes)
        return self.record.nodes

    @property
    def on_slurm(self) -> bool:
        """Whether the run is on Slurm."""
        return self.launch.cluster.kind is ClusterKind.slurm

    def build_slurm_commands(self) -> SlurmCommands:
        """Return Slurm's commands."""
        return SlurmCommands(bin_dir=self.launch.cluster.bin_dir, environ=self.context.environ)


def inject_fault(fault: Fault, scene: FaultScene) -> str:
    """Inject a fault and return what was done, in words.

    Raises MissedError if there is nothing to hit now, UsageError if this fault is not possible for
    this run, SchedulerError if Slurm refuses or does not answer.
    """
    if fault.kind in SIGNALS:
        return _send_fault_signal(fault, scene)
    if fault.kind in ON_CHECKPOINTS:
        return _damage_checkpoint(fault, scene)
    if fault.kind in ON_SANDBOX:
        return _inject_sandbox_fault(fault, scene)
    return _inject_slurm_fault(fault, scene)


def _send_fault_signal(fault: Fault, scene: FaultScene) -> str:
    if scene.record.attempt == 0:
        raise MissedError(f"no attempt of {scene.record.id} has begun")
    number = _NUMBERS[fault.kind]
    node = _find_target_node(fault, scene)
    wanted = _build_process_query(fault, node, scene)
    pids = _signal_processes_on_node(wanted, 0 if scene.dry else number, node, scene)
    whom = f"rank {wanted.rank}" if fault.target is FaultTarget.rank else f"the {fault.target}"
    if not pids:
        raise MissedError(
            f"{whom} has no process on {node} at the moment",
            hint="it may be between two rounds: see `hpckit status`",
        )
    return f"{number.name} to {whom} (pid {', '.join(map(str, pids))} on {node})"


def _find_target_node(fault: Fault, scene: FaultScene) -> str:
    if fault.target is FaultTarget.supervisor:
        host = scene.record.supervisor[0] if scene.record.supervisor else ""
        short = host.partition(".")[0]
        return host if host in scene.nodes or not scene.on_slurm else short
    if fault.node is not None:
        return fault.node
    place = (fault.rank or 0) // scene.settings.resources.tasks_per_node
    if place >= len(scene.nodes):
        raise MissedError(
            f"there is no rank {fault.rank or 0}: the latest round has "
            f"{scene.settings.resources.tasks_per_node} on each of {len(scene.nodes)} nodes"
        )
    return scene.nodes[place]


def _build_process_query(fault: Fault, node: str, scene: FaultScene) -> ProcessQuery:
    record = scene.record
    process = record.supervisor[1:] if record.supervisor else None
    return ProcessQuery(
        target=fault.target,
        attempt=scene.launch.paths.run(record.index).attempt(record.attempt).folder,
        rank=(fault.rank or 0) if fault.target is FaultTarget.rank else None,
        node=node if fault.target is FaultTarget.agent and scene.on_slurm else None,
        process=process if fault.target is FaultTarget.supervisor else None,
    )


def _signal_processes_on_node(
    wanted: ProcessQuery, number: int, node: str, scene: FaultScene
) -> tuple[int, ...]:
    if not scene.on_slurm:
        _refuse_other_host(scene)
        return signal_processes(wanted, number)
    words = (scene.launch.python, "-P", "-m", "hpckit.runtime.processes", str(int(number)))
    assert scene.record.job is not None, "an attempt on Slurm has a job"  # noqa: S101
    try:
        said = running_job.run_on_node(
            scene.record.job, node, (*words, *wanted.to_command_words()), scene.build_slurm_commands()
        )
    except SchedulerAwayError:
        # A new step needs the controller; but the process may be on this very node.
        if pids := signal_processes(wanted, number):
            return pids
        raise
    return tuple(json.loads(said.strip().splitlines()[-1]))


def _refuse_other_host(scene: FaultScene) -> None:
    host = scene.record.supervisor[0] if scene.record.supervisor else this_host()
    if host != this_host():
        raise UsageError(
            f"run {scene.record.id} is carried on {host}, and its processes cannot be signalled "
            f"from {this_host()}",
            hint=f"run there: hpckit chaos {scene.launch.paths.run(scene.record.index).folder} …",
        )


def _damage_checkpoint(fault: Fault, scene: FaultScene) -> str:
    folder = checkpoint_folder(scene.launch, scene.record.index, scene.settings)
    newest: tuple[Path, Manifest] | None = next(
        (
            (entry.folder, entry.manifest)
            for entry in CheckpointFolder(folder).list_entries()
            if entry.manifest
        ),
        None,
    )
    if newest is None:
        raise MissedError(f"there is no committed checkpoint in {folder}")
    where, manifest = newest
    try:
        if fault.kind is FaultKind.tear:
            if not scene.dry:
                (where / NAME).unlink()
            return f"removed {where.name}/{NAME}"
        sizes = {name: one.size for name, one in sorted(manifest.files.items())}
        return _damage_checkpoint_file(fault, where, sizes, dry=scene.dry)
    except FileNotFoundError:
        raise MissedError(f"{where.name} was just removed") from None


def _damage_checkpoint_file(fault: Fault, folder: Path, sizes: Mapping[str, int], *, dry: bool) -> str:
    fraction = _MIDDLE if fault.fraction is None else fault.fraction
    at = int(fraction * sum(sizes.values()))
    for name, size in sizes.items():  # noqa: B007  # the file at which the loop stops
        if at < size:
            break
        at -= size
    flips = fault.kind is FaultKind.flip
    if not dry:
        with (folder / name).open("r+b") as file:
            file.seek(at)
            if flips:
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ 1]))
            else:
                file.truncate()
    done = f"flipped bit 0 of byte {at}" if flips else f"cut after byte {at}"
    return f"{done} of {size} in {folder.name}/{name}"


def _inject_slurm_fault(fault: Fault, scene: FaultScene) -> str:
    job = scene.record.job
    if not scene.on_slurm or job is None:
        raise UsageError(
            f"{fault.kind} can only be done by Slurm, and run {scene.record.id} is on cluster "
            f"{scene.launch.cluster.kind}",
            hint="kill, stop and term work everywhere",
        )
    done = f"{fault.kind} of job {job}"
    if scene.dry:
        return done
    if fault.kind is FaultKind.requeue:
        running_job.force_requeue(job, scene.build_slurm_commands())
    elif fault.kind is FaultKind.scancel:
        cancel_jobs([job], scene.build_slurm_commands())
    else:
        assert fault.partition is not None, "the grammar asks for a partition"  # noqa: S101
        seconds = _URGENT_S if fault.seconds is None else fault.seconds
        urgent = running_job.submit_preempting_job(
            scene.nodes, fault.partition, seconds, scene.build_slurm_commands()
        )
        done = f"job {urgent} in partition {fault.partition} wants {', '.join(scene.nodes)}"
    return done


def _inject_sandbox_fault(fault: Fault, scene: FaultScene) -> str:
    program = _find_sandbox_program(fault, scene)
    node = [_check_sandbox_node(fault, scene)] if fault.kind in ON_NODES else []
    verb = _sandbox_verb(fault)
    if scene.dry:
        return " ".join([program.name, verb, *node])
    commands = SlurmCommands(
        bin_dir=str(program.parent), environ=scene.context.environ, timeout=_SANDBOX_PATIENCE
    )
    return commands.run(program.name, verb, *node).strip()


def _sandbox_verb(fault: Fault) -> str:
    return fault.kind.value.replace("_", "-")


def _find_sandbox_program(fault: Fault, scene: FaultScene) -> Path:
    program = scene.sandbox
    if program is None:
        raise UsageError(
            f"{fault.kind} is possible on the sandbox only: a rehearsal must not break the "
            "nodes or the controller of a real cluster",
            hint=f"with the sandbox of this machine: hpckit sandbox {_sandbox_verb(fault)}; with "
            f"another one, name its program: --sandbox PATH or ${SANDBOX_VARIABLE}",
        )
    if not program.is_file():
        raise UsageError(
            f"there is no sandbox program {program}",
            hint="it is `hpckit sandbox`, or scripts/slurm-sandbox of a checkout",
        )
    return program


def _check_sandbox_node(fault: Fault, scene: FaultScene) -> str:
    breaks = fault.kind in {FaultKind.kill_node, FaultKind.cut_node}
    if fault.node is None or (breaks and fault.node not in scene.nodes):
        said = "without a node" if fault.node is None else f"of {fault.node}"
        raise UsageError(
            f"{fault.kind} {said}: run {scene.record.id} is on {', '.join(scene.nodes) or 'none'}",
            hint=f"such as: {fault.kind} node={scene.nodes[-1] if scene.nodes else 'NODE'}",
        )
    return fault.node
