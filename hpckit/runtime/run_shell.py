"""A shell or a command in place of a run: with its environment and working folder, on its node.

Runs on the node as `python -P -m hpckit.runtime.run_shell LAUNCH RUN ATTEMPT [WORDS]` and becomes
that program. The environment is that of a rank of the run on this node, including the effects of
modules and `cluster.setup`, without what says which rank it is. Between two rounds it is built the
way an agent builds it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.errors import HpckitError, RunError
from hpckit.model.fault import FaultTarget
from hpckit.model.node_setup import ContainerInside
from hpckit.record.launches import Launch, load_launch, load_run_settings
from hpckit.record.secret_variables import read_secrets
from hpckit.record.snapshot.package_zip import find_own_zip
from hpckit.record.working import find_working_folder
from hpckit.report.escape import escape_controls
from hpckit.runtime.environ import copy_environment, remove_rank_variables
from hpckit.runtime.fork_server.protocol import read_process_environment
from hpckit.runtime.processes import ProcessQuery, find_processes, find_rank_environment
from hpckit.runtime.run_variables import run_folder_variables, run_variables

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""Exit codes of a command that cannot be started, as in shells."""

_OF_ONE_RANK = frozenset({"HPCKIT_STACKS", "HPCKIT_MTBF_HOURS", "HPCKIT_SAVE_COST"})
_OF_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")


def build_shell_environment(
    launch: Launch, index: int, attempt: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a run's ranks here, for a process that is not one of them."""
    folder = launch.paths.run(index).attempt(attempt).folder
    found = find_rank_environment(folder, environ.get("SLURMD_NODENAME"))
    if not found:
        settings, _ = load_run_settings(launch, index)
        secrets = read_secrets(launch.paths, index, settings)
        found = run_variables(launch, index, settings, secrets, environ)
    ours = {
        name: value for name, value in environ.items() if name.startswith("SLURM") or name in _OF_TERMINAL
    }
    kept = {name: value for name, value in remove_rank_variables(found).items() if name not in _OF_ONE_RANK}
    place = run_folder_variables(launch, index)
    return {**kept, **ours, **place, "HPCKIT_ATTEMPT_DIR": str(folder)}


def restore_default_signals() -> None:
    """Let programs that this process becomes end at a closed pipe, which Python ignores."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def find_login_shell(environ: Mapping[str, str]) -> str:
    """Return the user's shell."""
    try:
        return environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def enter_container_of_agent(launch: Launch, index: int, attempt: int, arguments: Sequence[str]) -> None:
    """Become this module again in the container of the run's agent on this node; return if it has none.

    In its namespaces, not in a container of its own: only there may a debugger look at ranks.
    Raises RunError.
    """
    settings, _ = load_run_settings(launch, index)
    outside = settings.container.inside is not ContainerInside.agents
    if launch.find_container(index) is None or outside or find_own_zip() is not None:
        return
    folder = launch.paths.run(index).attempt(attempt).folder
    node = copy_environment().get("SLURMD_NODENAME")
    found = find_processes(ProcessQuery(target=FaultTarget.agent, attempt=folder, node=node))
    if not found:
        raise RunError(
            "the run has no agent on this node now", hint="try again shortly, or name another --node"
        )
    proc, own = Path(f"/proc/{found[0]}"), Path("/proc/self/ns")
    python, *_ = (proc / "cmdline").read_bytes().split(b"\0")
    differ = [file for file in _NAMESPACES if (own / file).readlink() != (proc / "ns" / file).readlink()]
    spaces = [f"--{_NAMESPACES[file]}" for file in differ]
    words = ["nsenter", f"--target={found[0]}", *spaces, "--root", "--preserve-credentials", "--"]
    words += [os.fsdecode(python), "-P", "-m", "hpckit.runtime.run_shell", *arguments]
    ours = {name: value for name, value in copy_environment().items() if name.startswith("SLURM")}
    variables = {**read_process_environment(found[0]), **ours}
    terminal = {name: value for name, value in copy_environment().items() if name in _OF_TERMINAL}
    program = shutil.which("nsenter")
    if program is None:
        raise RunError(
            "this node has no nsenter in PATH", hint="it enters containers, and is part of util-linux"
        )
    os.execve(program, words, {**variables, **terminal})  # noqa: S606  # no shell is the point


_NAMESPACES = {"user": "user", "mnt": "mount", "pid": "pid", "net": "net", "ipc": "ipc"}
"""The kernel's files of a process, and nsenter's options."""


def replace_process_with_command(launch: Launch, index: int, attempt: int, words: Sequence[str]) -> int:
    """Replace this process with a command of the run, or a shell; return only if that fails.

    Raises HpckitError.
    """
    variables = build_shell_environment(launch, index, attempt, copy_environment())
    settings, _ = load_run_settings(launch, index)
    folder = find_working_folder(launch, index, settings.runtime.cwd)
    try:
        os.chdir(folder)
    except OSError as error:
        raise RunError(
            f"the working folder of the run cannot be entered: {folder}: {error.strerror}",
            hint="it is made when the first attempt begins; try again shortly",
        ) from error
    command = list(words) or [find_login_shell(variables)]
    restore_default_signals()
    try:
        os.execvpe(command[0], command, variables)  # noqa: S606  # no shell is the point
    except OSError as error:
        _print_error(f"cannot start {command[0]!r} in {folder}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _print_error(text: str) -> None:
    sys.stderr.write(f"hpckit: error: {escape_controls(text)}\n")


def main(words: Sequence[str]) -> int:
    """Become the program that the words name; print an error the way `hpckit` does."""
    folder, index, attempt, *command = words
    try:
        launch = load_launch(Path(folder))
        enter_container_of_agent(launch, int(index), int(attempt), words)
        return replace_process_with_command(launch, int(index), int(attempt), command)
    except HpckitError as error:
        _print_error(error.message)
        sys.stderr.write("".join(f"  {escape_controls(line)}\n" for line in error.hint.splitlines()))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
