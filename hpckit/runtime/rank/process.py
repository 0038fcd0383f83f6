"""The process of one rank, as its agent starts it: `python -P -m hpckit.runtime.rank.process`.

It enters the frozen code, initialises the process group and calls the entry point, or replaces
itself with the user's command (no torch is imported here then). It does not decide what an end
means, but leaves an exit record of what was raised. As a fork server it imports what ranks import,
and each process it forks goes on as such a rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from hpckit.errors import ConfigError, HpckitError
from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.command import command_words, script_of
from hpckit.model.failure import Cause, ExitReason, RankExit
from hpckit.model.launch import LaunchConfig, WorkingFolder
from hpckit.model.plain import to_plain
from hpckit.model.rank import RankInfo
from hpckit.observe.gpu_choice import GPUS_ASKED, HOW_TO_ASK
from hpckit.planning.recovery.classify import classify
from hpckit.record.launches import Launch, load_launch, load_settings
from hpckit.record.layout import AttemptPaths, RoundPaths
from hpckit.record.store import write_json
from hpckit.record.working import working_folder
from hpckit.runtime import stacks
from hpckit.runtime.channel.rank_pipe import open_link
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import allow_many_files, with_hint
from hpckit.runtime.environ import environment, export, rank_info
from hpckit.runtime.foreground import take_terminal
from hpckit.runtime.fork_server.protocol import LISTENER
from hpckit.runtime.fork_server.server import ForkedStart, imports_to_keep, serve
from hpckit.runtime.left_behind import die_with_agent
from hpckit.runtime.rank.child_signals import shield_children, shield_this_child
from hpckit.runtime.rank.exit_status import ExitStatus, exit_code
from hpckit.runtime.rank.user_function import call, calls, load_function
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


def command_of(launch: Launch, settings: LaunchConfig) -> list[str]:
    """Return the words of the command; in the project's folder its script is the frozen one.

    A restart or a resume must not run what was edited since.
    """
    words = list(command_words(settings.command))
    script = script_of(words) or words[0]
    if settings.runtime.cwd is WorkingFolder.project and ("/" in script or script != words[0]):
        frozen = Path(launch.code.working_dir, script)
        if frozen.is_file():
            words[words.index(script)] = str(frozen)
    return words


def become_command(words: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process with the user's command; raises ConfigError if it cannot start."""
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
    def is_self(self) -> bool:
        """Whether this is the rank itself, not a child that the user's code forked."""
        return os.getpid() == self.process

    def work(self) -> None:
        """Do this rank's work; raises whatever the user's code raises."""
        launch = load_launch(Path(self.environ["HPCKIT_LAUNCH_DIR"]))
        index = int(self.environ["HPCKIT_RUN_INDEX"])
        settings, _ = load_settings(launch, index)
        os.chdir(working_folder(launch, index, settings.runtime.cwd))
        # The frozen counterpart of the directory that the user launched from.
        sys.path.insert(0, launch.code.working_dir)
        if settings.command is not None:
            become_command(command_of(launch, settings), self.environ)
        self._call(settings, Path(launch.code.working_dir))

    def _call(self, settings: LaunchConfig, code: Path) -> None:
        """Import the user's function, initialise the process group, seed, and call it."""
        with imports_to_keep():
            function = load_function(str(settings.entry_point))
            if self.forked is not None:
                self.forked.begin_fresh_if_changed(environment())
            from hpckit.runtime.generators import seed_everything  # noqa: PLC0415  # imports torch
            from hpckit.runtime.rank import attach, cuda_memory, process_group, recorder  # noqa: PLC0415  # seconds: commands must not wait

            loops = calls(function, "steps", code)
            if loops and calls(function, "state", code):
                # Needed once the state is, and half a second then, and at the process's end.
                import hpckit.runtime.rank.checkpointing  # noqa: F401, PLC0415

        stacks.arm_rank(self.environ)
        shield_children()
        link = open_link(self.environ)
        assert link is not None, "the agent passes a line to every rank it starts"  # noqa: S101
        device = process_group.choose_device(
            settings.runtime.device,
            self.info,
            asked=gpus_asked(settings.resources),
        )
        self.run = attach.make_run(self.environ, self.info, device, link)
        self.memory = cuda_memory.remember_memory(self.run)
        timeout = timedelta(seconds=settings.runtime.rendezvous_timeout_s)
        rendezvous = process_group.AgentRendezvous(link)
        store = process_group.make_store(self.info, rendezvous, timeout)
        attach.export_address(self.info, store)
        process_group.initialise(self.info, device, store, timeout)
        recorder.answer_agent(self.environ, self.info)
        seed_everything(settings.seed)
        if loops:
            self.run.expect_steps()
        call(function, self.run)
        if not self.is_self:
            return
        self.run.finish()
        process_group.close(self.run.registered)

    def record_end(self, error: BaseException) -> None:
        """Record the exception for the agent; best effort for any kind of exception."""
        if not self.is_self:
            return
        told = traceback.TracebackException(type(error), error, _of_user(error.__traceback__))
        memory = "" if self.memory is None else self.memory.note(error)
        if memory:
            sys.stderr.write(f"hpckit: {memory}\n")
        said = with_hint(str(told)[:_TRACEBACK_CHARACTERS])
        hint = error.hint if isinstance(error, HpckitError) else ""
        if "No CUDA GPUs" in said and environment().get(GPUS_ASKED) == "0":
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
        if classify(record) is Cause.communication:
            from hpckit.runtime.rank.recorder import keep_if_waiting  # noqa: PLC0415  # torch

            keep_if_waiting(self._round(), self.info, record)
        with contextlib.suppress(OSError):
            write_json(self._round().exit_record(self.info.rank), to_plain(record))

    def _round(self) -> RoundPaths:
        attempt = AttemptPaths(Path(self.environ["HPCKIT_ATTEMPT_DIR"]))
        return attempt.round(int(self.environ["HPCKIT_ROUND"]))


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Skip our own frames: the user's traceback begins in the user's code."""
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    ours = Path(name).parent == Path(__file__).parent
    return ours or name.startswith("<frozen importlib") or "/importlib/" in name


def main() -> int:
    """Run this rank and return its exit code. The user's own SystemExit keeps its code."""
    forked = None
    if LISTENER in environment():
        # Fork ranks until no agent is left; in a rank, go on as one.
        with contextlib.suppress(ImportError):  # each rank tells
            forked = serve(environment(), _OF_EVERY_RANK)
        if forked is None:
            return 0
    if "SLURM_PROCID" in environment():
        export({"SLURM_TASK_PID": str(os.getpid())})
    environ = environment()
    die_with_agent(environ)
    take_terminal()
    allow_many_files()
    leaving = ExitStatus()
    rank = RankProcess(environ=environ, info=rank_info(environ), forked=forked)
    try:
        rank.work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # the user's code; CheckpointException is one
        return leaving.with_code(_tell(rank, error))
    # In a child that the user's code forked, torch would wait for threads that do not exist there.
    return 0 if rank.is_self else leaving.with_code(0)


def _tell(rank: RankProcess, error: BaseException) -> int:
    """Record what ended the rank and print what Python would print; return the exit code."""
    match error:
        case HpckitError():
            rank.record_end(error)
            sys.stderr.write(f"hpckit: error: {error.message}\n  {error.hint}".rstrip() + "\n")
            return _code_of(error)
        case SystemExit():
            if isinstance(error.code, str):
                rank.record_end(error)
                sys.stderr.write(f"{error.code}\n")
            return exit_code(error.code)
        case _:
            rank.record_end(error)
            traceback.print_exception(type(error), error, _of_user(error.__traceback__))
            return 1


def _code_of(error: HpckitError) -> int:
    match error.__cause__:
        case FileNotFoundError():
            return COMMAND_NOT_FOUND
        case OSError():
            return COMMAND_NOT_EXECUTABLE
        case _:
            return 1


if __name__ == "__mp_main__":  # a child that is not forked imports its parent's main module
    shield_this_child()
if __name__ == "__main__":
    sys.exit(main())
