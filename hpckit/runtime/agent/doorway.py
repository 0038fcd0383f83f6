"""The doorway: what starts the agent of a node for features of its run, and stays outside with the last will.

Run on the host as `python -m hpckit.runtime.agent.doorway LAUNCH RUN ATTEMPT`, if a feature of the run has a
hook `start_agent(*, launch, index, attempt, settings, config, words, environ) -> list[str]`. Each one gets
the words that start the agent so far, may prepare this node and change the variables, and returns the words.
It may raise HpckitError. So may `explain_agent_end(*, launch, index, words, environ)`, which is called if the
agent soon ended with a failure, and by no signal. Only a process on the host can ask Slurm for
something, and end what a container's program leaves behind. This module imports no feature by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess  # noqa: TID251  # it waits for all of its children, which asyncio cannot
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hpckit.errors import FrozenFolderError, HpckitError, NodeError, NotFoundError
from hpckit.model.events import AttemptEnded
from hpckit.model.failure import FROZEN_FOLDER_EXIT, FROZEN_FOLDER_UNREADABLE, SHELL_SIGNAL
from hpckit.model.fault import FaultTarget
from hpckit.record.launches import load_launch, load_run_settings
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.store import read_events
from hpckit.run_features import WATCH, find_run_hooks
from hpckit.runtime.channel.tcp import supervisor_answers
from hpckit.runtime.environ import (
    FORK_SERVER,
    ON_SUPERVISOR_LOST,
    copy_environment,
    find_node_name,
    rank_info,
)
from hpckit.runtime.left_behind import become_subreaper, die_with_parent, end_orphans
from hpckit.runtime.processes import ProcessQuery, find_processes
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass, field

SUPERVISOR_LOST = 70
"""Exit code of an agent whose supervisor is gone (EX_SOFTWARE)."""

_TURN_S = 3.0
_LEAVE_S = 2.0
_EARLY_S = 30.0
_LOOK_S = 3.0
_LOOKING = 3
"""How many of a run's doorways look whether its supervisor is lost."""
_FORWARDED = (*NOTICES, signal.SIGHUP)


def run_supervisor_lost_command(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the command that the supervisor left for its own loss; the agents of a run take turns."""
    if words:
        time.sleep(_TURN_S * rank_info(environ).rank)
        with contextlib.suppress(OSError):
            subprocess.run(words, stdin=subprocess.DEVNULL, env=environ, check=False)


def run_on_node(arguments: Sequence[str], work: Callable[[], int]) -> int:
    """Return the exit code of an agent's work; say in one clear line what keeps its node away.

    The supervisor of the attempt (its launch folder, run and number are the arguments) is told, or quotes it
    from the step's log.
    """
    try:
        return work()
    except NodeError as error:
        sys.stderr.write(
            f"hpckit: error: {find_node_name()}: {error.message}\n  {error.hint}".rstrip() + "\n"
        )
        import_module("hpckit.runtime.agent.joining").tell_of_refusal(arguments, error)
        return error.exit_code
    except (FrozenFolderError, NotFoundError) as error:
        message = f"node {find_node_name()} {FROZEN_FOLDER_UNREADABLE}: {error.message}"
        sys.stderr.write(f"hpckit: error: {message}\n  {error.hint}".rstrip() + "\n")
        return FROZEN_FOLDER_EXIT
    except HpckitError as error:
        sys.stderr.write(f"hpckit: error: {error.message}\n  {error.hint}".rstrip() + "\n")
        return error.exit_code


@dataclass(slots=True)
class _LastWill:
    """The command that the supervisor left for its own loss.

    When Slurm ends a step, it ends what mounts the image, too: the agent may crash before it notices that its
    supervisor is gone, or its container may outlast the time until SIGKILL. So the first doorways look by
    themselves as soon as they are `asked` to end.
    """

    words: Sequence[str]
    paths: AttemptPaths
    asked: threading.Event = field(default_factory=threading.Event)
    _lock: Any = field(default_factory=threading.RLock)

    def take(self) -> Sequence[str]:
        """Return the command, if it has not been run, and run it here no more."""
        with self._lock:
            words, self.words = self.words, ()
            return words

    def run_if_supervisor_is_lost(self) -> None:
        """Wait for a signal to end, and run it if the supervisor has gone without an end of the attempt."""
        self.asked.wait()
        while supervisor_answers(self.paths) or _has_attempt_ended(self.paths):
            time.sleep(_TURN_S)
        with self._lock:
            run_supervisor_lost_command(self.take(), copy_environment())


def _has_attempt_ended(paths: AttemptPaths) -> bool:
    return any(isinstance(event, AttemptEnded) for event in read_events(paths.events))


class _Child:
    """The program that the words start. It gets the signals of this process, also earlier ones."""

    def __init__(self, last_will: _LastWill) -> None:
        self.last_will = last_will
        self.process: subprocess.Popen[bytes] | None = None
        self.heard: list[int] = []
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, _: object) -> None:
        self.heard.append(number)
        if number == signal.SIGTERM:
            self.last_will.asked.set()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def run(self, words: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run it to its end; return its exit code as a shell tells it. Raises NodeError."""
        try:
            self.process = subprocess.Popen(
                words,
                env=environ,
                stdin=subprocess.DEVNULL,
                # A session of its own shows later what it has left behind.
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # there are no other threads
            )
        except OSError as error:
            raise NodeError(
                f"cannot start {words[0]}: {error.strerror}",
                hint="is it installed there, or made available by cluster.modules or cluster.setup?",
            ) from error
        if rank_info(copy_environment()).rank < _LOOKING:
            threading.Thread(target=self.last_will.run_if_supervisor_is_lost, daemon=True).start()
        for number in self.heard[:]:
            self._forward(number, None)
        while True:  # orphans end here, too: they would stay zombies
            pid, status = os.wait()
            if pid == self.process.pid:
                self.process.returncode = code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else SHELL_SIGNAL - code


def start_agent(arguments: Sequence[str]) -> int:
    """Start this node's agent by the words of its run's features; return its exit code."""
    folder, index, attempt = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    environ, paths = copy_environment(), LaunchPaths(folder).run(index).attempt(attempt)
    last_will = _LastWill(words=json.loads(environ.pop(ON_SUPERVISOR_LOST, "[]")), paths=paths)
    child = _Child(last_will)
    environ.pop(FORK_SERVER, None)  # it is another Python
    become_subreaper()
    launch = load_launch(folder)
    settings, config = load_run_settings(launch, index)
    words = [launch.python, "-P", "-m", "hpckit.runtime.agent", *arguments]
    for hook in find_run_hooks(settings, config, "start_agent"):
        words = hook(
            launch=launch,
            index=index,
            attempt=attempt,
            settings=settings,
            config=config,
            words=words,
            environ=environ,
        )

    def explain_end() -> None:
        for hook in find_run_hooks(settings, config, "explain_agent_end"):
            hook(launch=launch, index=index, words=words, environ=environ)

    began = time.monotonic()
    try:
        code = child.run(words, environ)
    except NodeError:
        explain_end()
        raise
    finally:
        words_left = last_will.take()
        end_orphans(grace_s=_LEAVE_S)
    by_signal = child.heard or SHELL_SIGNAL < code <= SHELL_SIGNAL + signal.NSIG
    if not (code in {0, SUPERVISOR_LOST} or by_signal) and time.monotonic() - began < _EARLY_S:
        explain_end()
    if code == SUPERVISOR_LOST or (code and not supervisor_answers(paths)):
        run_supervisor_lost_command(words_left, copy_environment())
    return code


def watch_agent(arguments: Sequence[str]) -> int:
    """Watch an agent that Slurm itself has put into a container; run the last will when it is gone.

    The command of the will does nothing while the supervisor answers: the agent may have been killed.
    """
    attempt = LaunchPaths(Path(arguments[0])).run(int(arguments[1])).attempt(int(arguments[2])).folder
    environ, was_there = copy_environment(), False
    will = json.loads(environ.pop(ON_SUPERVISOR_LOST, "[]"))
    wanted = ProcessQuery(target=FaultTarget.agent, attempt=attempt, node=find_node_name())
    while True:
        time.sleep(_LOOK_S)
        is_there = bool(find_processes(wanted))
        if was_there and not is_there:
            run_supervisor_lost_command(will, environ)
        was_there = is_there


def main(arguments: Sequence[str]) -> int:
    """Start an agent, or watch one."""
    if arguments[0] == WATCH:
        return watch_agent(arguments[1:])
    return run_on_node(arguments, lambda: start_agent(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
