"""The facts of machines for `doctor --env`: of this one, and of a compute node through a launch.

The launch of one run takes the path of every other run; it is removed if the run wrote its facts.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpckit.config.command import encode_literal_value
from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import SchedulerError, UsageError
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank
from hpckit.model.environment.facts import ClockOffset, EnvironmentFacts, FolderRole, SlurmFacts
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.observe.machine import read_machine_facts
from hpckit.observe.torch_probe import probe_torch
from hpckit.operations.answered_run import (
    PLAIN_RUN,
    drop_task_and_watch_overrides,
    launch_and_await_answer,
    read_answer_of_run,
)
from hpckit.operations.prepare import Prepared, prepare_launch
from hpckit.planning.compatibility.judge import list_nccl_and_cuda_variables
from hpckit.record.launches import Launch, load_launch
from hpckit.record.store import make_private_folder, open_regular_file, write_json, write_text_atomically
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_query import PATIENCE
from hpckit.values import replace
from hpckit.version import __version__

MOST_BYTES = 2**20
"""Facts take a few thousand bytes; nothing longer is read."""

_FORCED = (*PLAIN_RUN, *("name=environment", "resources.nodes=1", "resources.tasks_per_node=1"))
"""The run is one process on one node, and nothing is kept of it."""
_TIMEOUT_MIN = 2
_WHAT, _DOING = "facts", "looking at a node"


def compose_settings_of_single_run(request: ComposeRequest, what: str) -> LaunchConfig:
    """Return the settings of the only run of these words; `what` says why there is one."""
    points = compose_sweep_points(request)
    if len(points) != 1:
        raise UsageError(
            f"these overrides make {len(points)} runs; {what}",
            hint="leave out -m, values with commas, and stages",
        )
    return points[0].settings


def prepare_node_facts_run(
    request: ComposeRequest, settings: LaunchConfig, words: Sequence[str], context: Context, *, quiet: bool
) -> Prepared:
    """Return the launch that looks at a node of the cluster which `settings` choose."""
    python = settings.cluster.python or sys.executable
    cpus = settings.resources.tasks_per_node * count_cpus_per_rank(settings.resources)
    forced = [*_FORCED, f"resources.cpus_per_task={cpus}"]
    if settings.entry_point is not None:
        forced.append("entry_point=null")
    kept = drop_task_and_watch_overrides(request.overrides, timeout_min=_TIMEOUT_MIN)
    own = replace(request, overrides=(*kept, *forced), command=(python, "-m", "hpckit", "node-facts"))
    return prepare_launch(own, words, context, quiet=quiet)


def fetch_node_facts(prepared: Prepared, context: Context) -> tuple[EnvironmentFacts, str, ClockOffset]:
    """Launch, wait for the facts of the node, and remove the launch.

    Returns the facts, the token that the node was to read, and what is known of clocks; otherwise
    as `answered`.
    """
    folder = Path(prepared.plan.folder)
    with _write_token_file(folder) as token:
        began = context.now()
        with launch_and_await_answer(prepared, context, read_node_facts, _WHAT, _DOING) as (_, answer):
            at = answer.value.at
            clock = ClockOffset(
                least_s=(at - answer.seen_at).total_seconds(), most_s=(at - began).total_seconds()
            )
    return answer.value, token, clock


@contextmanager
def _write_token_file(folder: Path) -> Iterator[str]:
    """Write the token file beside the future launch folder; remove it at the end."""
    token, file = secrets.token_hex(TOKEN_BYTES // 8), token_file_path(folder)
    try:
        make_private_folder(folder.parent)
        write_text_atomically(file, token)
    except OSError as error:
        raise UsageError(
            f"{folder.parent} cannot be written: {error.strerror or error}",
            hint="choose another folder for launches: output_dir, or $HPCKIT_OUTPUTS",
        ) from error
    try:
        yield token
    finally:
        file.unlink(missing_ok=True)


def read_node_facts(launch: Launch) -> EnvironmentFacts | None:
    """Return what the run of this launch wrote, None before it did; raises RunError."""
    return read_answer_of_run(launch.paths.run(0).node_facts, EnvironmentFacts, _WHAT, MOST_BYTES)


def output_dir_override(folder: str | None, cwd: Path) -> tuple[str, ...]:
    """Return the override that sets the folder of launches, in Hydra's grammar; none without."""
    if folder is None:
        return ()
    return (f"output_dir={encode_literal_value(str(cwd / Path(folder).expanduser()))}",)


def token_file_path(launch_folder: Path) -> Path:
    """Return the file in the output folder by which both sides tell that they see the same one."""
    return launch_folder.parent / f".environment-{launch_folder.name}"


def write_node_facts(context: Context) -> None:
    """Collect the facts of this node and write them into the folder of the run around it.

    Raises UsageError outside of a run, and HpckitError if its launch cannot be read.
    """
    environ = context.environ
    try:
        folder, index = Path(environ["HPCKIT_LAUNCH_DIR"]), int(environ["HPCKIT_RUN_INDEX"])
    except (KeyError, ValueError):
        raise UsageError(
            "node-facts works inside a run only: HPCKIT_LAUNCH_DIR or HPCKIT_RUN_INDEX is not set",
            hint="`hpckit doctor --env` starts such a run",
        ) from None
    launch: Launch = load_launch(folder)
    facts = collect_machine_facts(
        context,
        output=folder.parent,
        project=Path(environ.get("HPCKIT_PROJECT") or launch.code.project),
        bin_dir=launch.cluster.bin_dir,
        token=token_file_path(folder),
    )
    write_json(launch.paths.run(index).node_facts, to_plain(facts))


TOKEN_BYTES = 256
"""A token file is shorter; nothing longer is read."""


def collect_machine_facts(
    context: Context, *, output: Path, project: Path, bin_dir: str | None, token: Path | None
) -> EnvironmentFacts:
    """Return the facts of this machine; takes seconds, most of them to import torch.

    `output` is the folder of launches, `bin_dir` that of Slurm's programs, `token` the token file
    of the other side.
    """
    environ = context.environ
    torch = probe_torch(environ)
    folders = {FolderRole.output: output, FolderRole.project: project}
    found = read_machine_facts(
        environ,
        folders,
        hpckit=__version__,
        torch=torch,
        variables=list_nccl_and_cuda_variables(environ),
        at=context.now(),
    )
    return replace(
        found,
        slurm=ask_slurm_version(environ, bin_dir),
        token=None if token is None else read_token_file(token),
        at=context.now(),
    )


def ask_slurm_version(environ: Mapping[str, str], bin_dir: str | None) -> SlurmFacts:
    """Return which Slurm this machine has; all unknown if its programs do not answer."""
    commands = SlurmCommands(bin_dir=bin_dir, environ=environ, timeout=PATIENCE)
    if not commands.has_program("srun"):
        return SlurmFacts(version="")
    try:
        # `slurm 24.11.1`, of Debian `slurm-wlm 22.05.8`
        version = commands.run("srun", "--version").rpartition(" ")[2].strip() or None
        options = commands.run_with_all_output("srun", "--help")
    except SchedulerError:
        return SlurmFacts()
    return SlurmFacts(version=version, container_image="--container-image" in options)


def read_token_file(file: Path) -> str | None:
    """Return the text of a token file of the caller's own; None without one."""
    try:
        with open_regular_file(file) as opened:
            own = os.fstat(opened.fileno()).st_uid == os.getuid()
            return opened.read(TOKEN_BYTES).decode("ascii", "replace") if own else None
    except OSError:
        return None
