"""The exceptions that hpckit raises on purpose, with their exit codes.

HpckitError                      exit code
├── UsageError                   2   the request cannot be carried out as given
│   ├── ConfigError              2   a configuration does not compose or is inconsistent
│   ├── SnapshotError            2   the code snapshot cannot be taken
│   ├── TemplateError            2   a script template does not render
│   ├── NotFoundError            2   no such launch or run
│   ├── HeldError                2   another process is doing the same at this moment
│   └── ForeignError             2   a launch folder is not the caller's own
├── OutputError                  1   standard output cannot be written
├── RunFailedError               1   a run that was waited for did not complete
├── RunError                     1   an error on the node
│   ├── FrozenFolderError        1   a node cannot read its frozen folder
│   ├── ContainerError           1   a node cannot start the container of its run
│   ├── RankInfoError            1   the environment does not say which rank this is
│   ├── RendezvousError          1   ranks are missing, duplicated or cannot reach each other
│   ├── NonFiniteLossError       1   training has diverged
│   ├── UnsavedStateError        1   the last state of a run could not be saved
│   │   └── FullDiskError        1   because a disk is full or a quota is used up
│   └── ChannelError             1   a peer on the control channel is not who it should be
└── SchedulerError               3   the scheduler refused or did not answer
    ├── SchedulerRefusedError    3   it refused
    └── SchedulerAwayError       3   it did not answer
        └── SchedulerAbsentError 3   there is none: not installed, or not configured

Every error says what happened, which value, what is allowed, and in `hint` what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import ClassVar


class HpckitError(Exception):
    """Base of all errors that hpckit raises on purpose.

    Parameters: `message` (what happened, which value, what is allowed) and `hint` (what to do).
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HpckitError):
    """The request cannot be carried out as given."""


class ConfigError(UsageError):
    """A configuration does not compose or is inconsistent."""


class SnapshotError(UsageError):
    """The code snapshot cannot be taken."""


class TemplateError(UsageError):
    """A script template is missing, or does not render."""


class NotFoundError(UsageError):
    """No launch or run matches what was given."""


class HeldError(UsageError):
    """Another process is doing the same at this moment."""


class ForeignError(UsageError):
    """A launch folder is not the caller's own, or others may write to it."""


class OutputError(HpckitError):
    """Standard output cannot be written, for example to a file on a full disk."""

    exit_code = 1


class RunFailedError(HpckitError):
    """A run that was waited for ended otherwise than completed.

    `run` is its id, `state` how it ended, `cause` why, if that is known. Where its code raised, a
    note has the traceback.
    """

    exit_code = 1

    def __init__(self, message: str, *, run: str, state: str, cause: str | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.run, self.state, self.cause = run, state, cause


class RunError(HpckitError):
    """An error on the node."""

    exit_code = 1


class FrozenFolderError(RunError):
    """A node cannot read the frozen folder of its run."""


class NodeError(RunError):
    """No agent can start on a node. `cause` is the name of what that means for the run."""

    def __init__(self, message: str, *, cause: str = "agents_missing", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class ContainerError(NodeError):
    """A node cannot start the container of its run, or what is in it does not fit."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"cannot use its container: {message}", cause="container", hint=hint)


class RankInfoError(RunError):
    """The environment does not say which rank this process is."""


class RendezvousError(RunError):
    """Ranks are missing, duplicated, or cannot reach each other."""


class DeviceError(RunError):
    """A rank has no device of the requested kind."""


class NonFiniteLossError(RunError):
    """The loss was NaN or infinite for too long."""


class UnsavedStateError(RunError):
    """The last state of a run could not be saved, and there will be no further save."""


class FullDiskError(UnsavedStateError):
    """The last state of a run could not be saved: a disk is full, or a quota is used up."""


class ChannelError(RunError):
    """A peer on the control channel is not who it should be."""


class SchedulerError(HpckitError):
    """The scheduler refused or did not answer."""

    exit_code = 3


class SchedulerRefusedError(SchedulerError):
    """The scheduler refused."""


class SchedulerAwayError(SchedulerError):
    """The scheduler did not answer in time."""


class SchedulerAbsentError(SchedulerAwayError):
    """There is no scheduler here: its programs are missing, or not configured for a cluster."""


def import_optional(module: str, what: str, hint: str) -> ModuleType:
    """Import a module for `what`; raises UsageError if a library that it needs is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hpckit"):
            raise
        message = f"{what} needs {error.name}, which is not installed"
        raise UsageError(message, hint=hint) from error


def iterate_error_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, the outermost first, each once.

    Causes may form a circle: an error that is raised once more while another one is handled.
    """
    seen: list[BaseException] = []
    while error is not None and not any(error is known for known in seen):
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__
