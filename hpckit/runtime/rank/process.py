"""The process of one rank, as its agent starts it: `python -P -m hpckit.runtime.rank.process`.

It enters the frozen code, initialises the process group and calls the entry point, or replaces
itself with the user's command (no torch is imported here then). It does not decide what an end
means, but leaves an exit record of what was raised. As a fork server it imports what ranks import,
and each process it forks goes on as such a rank.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from hpckit.errors import ConfigError, HpckitError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.command import find_started_script, split_command
from hpckit.model.failure import Cause, ExitReason, RankExit
from hpckit.model.launch import LaunchConfig, WorkingFolder
from hpckit.model.plain import to_plain
from hpckit.model.rank import RankInfo
from hpckit.observe.gpu_choice import GPUS_ASKED, HOW_TO_ASK
from hpckit.planning.recovery.classify import classify_rank_exit
from hpckit.record.launches import Launch, load_launch, load_run_settings
from hpckit.record.layout import AttemptPaths, RoundPaths
from hpckit.record.store import write_json
from hpckit.record.working import find_working_folder
from hpckit.run_features import find_run_hooks
from hpckit.runtime import stacks
from hpckit.runtime.channel.rank_pipe import open_agent_link
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import add_open_files_hint, raise_open_file_limit
from hpckit.runtime.environ import copy_environment, rank_info, set_environment_variables
from hpckit.runtime.foreground import take_controlling_terminal
from hpckit.runtime.fork_server.protocol import LISTENER
from hpckit.runtime.fork_server.server import ForkedStart, pause_gc_for_imports, serve_fork_orders
from hpckit.runtime.left_behind import die_with_agent
from hpckit.runtime.rank.child_signals import shield_children_from_signals, shield_this_child_from_signals
from hpckit.runtime.rank.exit_status import ExitStatus, status_to_exit_code
from hpckit.runtime.rank.user_function import call_user_function, calls_method, load_user_function
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    from hpckit.runtime.rank.cuda_memory import CudaMemory
    from hpckit.runtime.rank.run import Run

COMMAND_NOT_FOUND = 127
COMMAND_NOT_EXECUTABLE = 126
_TRACEBACK_CHARACTERS = 20_000
_OF_EVERY_RANK = (
    *("hpckit.runtime.rank.attach", "hpckit.runtime.rank.checkpointing"),
    "torch._dynamo",  # a rank's first optimizer imports it
)
"""What a fork server imports. Not the user's module: what that does when imported is the rank's."""


def build_user_command(launch: Launch, settings: LaunchConfig) -> list[str]:
    """Return the words of the command; in the project's folder its script is the frozen one.

    A restart or a resume must not run what was edited since.
    """
    words = list(split_command(settings.command))
    script = find_started_script(words) or words[0]
    if settings.runtime.cwd is WorkingFolder.project and ("/" in script or script != words[0]):
        frozen = Path(launch.code.working_dir, script)
        if frozen.is_file():
            words[words.index(script)] = str(frozen)
    return words


def exec_user_command(words: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process with the user's command; raises ConfigError if it cannot start."""
    if words[0] == "python" and shutil.which("python", path=environ.get("PATH")) is None:
        # Some images have only python3. Python looks for itself by the word that started it.
        words = [sys.executable, *words[1:]]
    try:
        os.execvpe(words[0], words, dict(environ))  # noqa: S606  # no shell is the point
    except OSError as error:
        message = f"cannot start {words[0]!r} in {Path.cwd()}: {error.strerror}"
        hint = "only files that git tracks, or does not ignore, are in the frozen code"
        if isinstance(error, PermissionError):
            hint = f"make it executable (chmod +x {words[0]}), or name what runs it: python FILE"
        raise ConfigError(message, hint=hint) from error


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """The state of this process. `run` and `memory` are None until there is a device.

    `forked` is None in a Python of its own, which has imported nothing before the user's module.
    """

    environ: Mapping[str, str]
    info: RankInfo
    forked: ForkedStart | None = None
    run: Run | None = None
    memory: CudaMemory | None = None
    process: int = field(default_factory=os.getpid)

    @property
    def is_rank_itself(self) -> bool:
        """Whether this is the rank itself, not a child that the user's code forked."""
        return os.getpid() == self.process

    def run_user_code(self) -> None:
        """Do this rank's work; raises whatever the user's code raises."""
        launch = load_launch(Path(self.environ["HPCKIT_LAUNCH_DIR"]))
        index = int(self.environ["HPCKIT_RUN_INDEX"])
        settings, config = load_run_settings(launch, index)
        os.chdir(find_working_folder(launch, index, settings.runtime.cwd))
        # The frozen counterpart of the directory that the user launched from.
        sys.path.insert(0, launch.code.working_dir)
        if settings.command is not None:
            words, environ = build_user_command(launch, settings), dict(self.environ)
            for wrap in find_run_hooks(settings, config, "wrap_command"):
                words = wrap(
                    launch=launch, index=index, settings=settings, config=config, words=words, environ=environ
                )
            exec_user_command(words, environ)
        self._call_user_function(settings, Path(launch.code.working_dir))

    def _call_user_function(self, settings: LaunchConfig, code: Path) -> None:
        with pause_gc_for_imports():
            function = load_user_function(str(settings.entry_point))
            if self.forked is not None:
                self.forked.exec_fresh_if_variables_changed(copy_environment())
            from hpckit.runtime.generators import seed_all_generators  # noqa: PLC0415  # imports torch
            from hpckit.runtime.rank import attach, cuda_memory, process_group, recorder  # noqa: PLC0415  # seconds: commands must not wait

            loops = calls_method(function, "steps", code)
            if loops and calls_method(function, "state", code):
                # Needed once the state is, and half a second then, and at the process's end.
                import hpckit.runtime.rank.checkpointing  # noqa: F401, PLC0415

        stacks.enable_rank_stack_dumps(self.environ)
        shield_children_from_signals()
        link = open_agent_link(self.environ)
        assert link is not None, "the agent passes a line to every rank it starts"  # noqa: S101
        device = process_group.choose_device(
            settings.runtime.device, self.info, asked=requested_gpus_per_node(settings.resources)
        )
        self.run = attach.make_run(self.environ, self.info, device, link)
        self.memory = cuda_memory.watch_cuda_memory(self.run)
        timeout = timedelta(seconds=settings.runtime.rendezvous_timeout_s)
        rendezvous = process_group.AgentRendezvous(link)
        store = process_group.open_store(self.info, rendezvous, timeout)
        attach.export_store_address(self.info, store)
        process_group.initialise_process_group(self.info, device, store, timeout)
        recorder.answer_agent_questions(self.environ, self.info)
        seed_all_generators(settings.seed)
        if loops:
            self.run.start_hang_watch()
        call_user_function(function, self.run)
        if not self.is_rank_itself:
            return
        self.run.finish()
        process_group.leave_process_group(self.run.registered)

    def record_exception(self, error: BaseException) -> None:
        """Record the exception for the agent; best effort for any kind of exception."""
        if not self.is_rank_itself:
            return
        told = traceback.TracebackException(type(error), error, _skip_hpckit_frames(error.__traceback__))
        memory = "" if self.memory is None else self.memory.record_out_of_memory(error)
        if memory:
            sys.stderr.write(f"hpckit: {memory}\n")
        said = add_open_files_hint(str(told)[:_TRACEBACK_CHARACTERS])
        hint = error.hint if isinstance(error, HpckitError) else ""
        if "No CUDA GPUs" in said and copy_environment().get(GPUS_ASKED) == "0":
            hint = f"the run was given no GPU: {HOW_TO_ASK}"
        record = RankExit(
            rank=self.info.rank,
            node=self.info.node,
            code=1,
            reason=ExitReason.raised,
            step=None if self.run is None else self.run.step,
            exception=type(error).__name__,
            message="\n".join(filter(None, (said, hint, memory))),
            # Our own errors say what to do; their frames would only hide it.
            traceback=None
            if isinstance(error, HpckitError)
            else "".join(told.format())[-_TRACEBACK_CHARACTERS:],
            at=now(),
        )
        if classify_rank_exit(record) is Cause.communication:
            from hpckit.runtime.rank.recorder import write_failed_collectives  # noqa: PLC0415  # torch

            write_failed_collectives(self._round_paths(), self.info, record)
        with contextlib.suppress(OSError):
            write_json(self._round_paths().rank_exception_file(self.info.rank), to_plain(record))

    def _round_paths(self) -> RoundPaths:
        attempt = AttemptPaths(Path(self.environ["HPCKIT_ATTEMPT_DIR"]))
        return attempt.round(int(self.environ["HPCKIT_ROUND"]))


def _skip_hpckit_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None and _is_hpckit_frame(trace):
        trace = trace.tb_next
    return trace


def _is_hpckit_frame(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    ours = Path(name).parent == Path(__file__).parent
    return ours or name.startswith("<frozen importlib") or "/importlib/" in name


def main() -> int:
    """Run this rank and return its exit code. The user's own SystemExit keeps its code."""
    forked = None
    if LISTENER in copy_environment():
        # Fork ranks until no agent is left; in a rank, go on as one.
        with contextlib.suppress(ImportError):  # each rank tells
            forked = serve_fork_orders(copy_environment(), _OF_EVERY_RANK)
        if forked is None:
            return 0
    if "SLURM_PROCID" in copy_environment():
        set_environment_variables({"SLURM_TASK_PID": str(os.getpid())})
    environ = copy_environment()
    die_with_agent(environ)
    take_controlling_terminal()
    raise_open_file_limit()
    leaving = ExitStatus()
    rank = RankProcess(environ=environ, info=rank_info(environ), forked=forked)
    try:
        rank.run_user_code()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # the user's code; CheckpointException is one
        return leaving.force_exit_soon(report_end(rank, error))
    # In a child that the user's code forked, torch would wait for threads that do not exist there.
    return 0 if rank.is_rank_itself else leaving.force_exit_soon(0)


def report_end(rank: RankProcess, error: BaseException) -> int:
    """Record and print what ended a rank; return its exit code."""
    match error:
        case HpckitError():
            rank.record_exception(error)
            sys.stderr.write(f"hpckit: error: {error.message}\n  {error.hint}".rstrip() + "\n")
            return _exit_code_of_error(error)
        case SystemExit():
            if isinstance(error.code, str):
                rank.record_exception(error)
                sys.stderr.write(f"{error.code}\n")
            return status_to_exit_code(error.code)
        case _:
            rank.record_exception(error)
            traceback.print_exception(type(error), error, _skip_hpckit_frames(error.__traceback__))
            return 1


def _exit_code_of_error(error: HpckitError) -> int:
    match error.__cause__:
        case FileNotFoundError():
            return COMMAND_NOT_FOUND
        case OSError():
            return COMMAND_NOT_EXECUTABLE
        case _:
            return 1


if __name__ == "__mp_main__":  # a child that is not forked imports its parent's main module
    shield_this_child_from_signals()
if __name__ == "__main__":
    sys.exit(main())
