"""The cause of a rank's failure, and a signature that shows whether it happened before. Pure.

Reads one exit record. The signature is the same for the same failure on any rank, node or step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import PurePosixPath

from hpckit.model.failure import Cause, RankExit, Trait
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, replace

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"})
"""Signals that come from another process; other signals are caused by the process itself."""
_SHELL_SIGKILL = 137
"""What a shell returns for a child that was killed by SIGKILL."""

_LENGTH = 12
"""Hex digits of a signature: 48 bits; a run has dozens of failures, not millions."""
_FRAMES = 3
_MESSAGE_CHARACTERS = 300
_LOG_LINES = 100
"""An exception must be this close to the end of a log to be what ended the process."""

_DIRECT_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_IN_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The class of an exception, by its name or by a pattern in its message."""

    cause: Cause
    names: frozenset[str] = frozenset()
    says: re.Pattern[str] | None = None

    def matches_exception(self, name: str, message: str) -> bool:
        return name in self.names or (self.says is not None and bool(self.says.search(message)))


def _compile_message_pattern(pattern: str) -> re.Pattern[str]:
    return lazy_pattern(pattern, re.IGNORECASE | re.VERBOSE)


_RULES = (
    _Rule(cause=Cause.nan, names=frozenset({"NonFiniteLossError"})),
    _Rule(cause=Cause.rendezvous, names=frozenset({"RendezvousError"})),
    _Rule(
        cause=Cause.cuda_oom,
        names=frozenset({"OutOfMemoryError"}),  # torch's and cupy's
        says=_compile_message_pattern(
            r"""(CUDA|HIP)\ (out\ of\ memory | (error|failure)\b[^\n]{0,20}out\ of\ memory)
            | cudaErrorMemoryAllocation | CUBLAS_STATUS_ALLOC_FAILED"""
        ),
    ),
    _Rule(
        cause=Cause.host_oom,
        names=frozenset({"MemoryError", "_ArrayMemoryError", "bad_alloc"}),  # Python, numpy, C++
        says=_compile_message_pattern(r"Cannot\ allocate\ memory | DefaultCPUAllocator | std::bad_alloc"),
    ),
    _Rule(
        cause=Cause.disk_full,
        names=frozenset({"FullDiskError"}),
        # The last pattern is how torch.save reports a full disk (2.6 to 2.13): its buffered stream
        # lost what it could not write, so the position is wrong.
        says=_compile_message_pattern(
            r"""No\ space\ left\ on\ device | Disk\ quota\ exceeded
            | inline_container\.cc:\d+\]\s\.\ unexpected\ pos"""
        ),
    ),
    _Rule(
        cause=Cause.crash,  # a GPU's: another node helps, unlike with `exception`
        says=_compile_message_pattern(
            r"""uncorrectable\ (ECC|NVLink)\ error | hardware\ stack\ error
            | CUDA-capable\ device\(s\)\ is/are\ busy\ or\ unavailable
            | torch\ sees\ no\ GPU,\ .*\ its\ driver"""
        ),
    ),
    _Rule(
        # Wrong use of NCCL (two ranks on one GPU, shapes that differ) is an error of the user's
        # code.
        cause=Cause.exception,
        says=_compile_message_pattern(r"ncclInvalidUsage | ncclInvalidArgument"),
    ),
    _Rule(
        cause=Cause.communication,
        names=frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"}),
        says=_compile_message_pattern(
            r"""(gloo|nccl|ucc|c10d|TCPStore)[\s\S]{0,300}
                (closed\ by\ peer | reset\ by\ peer | connection\ refused | broken\ pipe
                | timed\ out | no\ route\ to\ host | connection\ abort
                | network\ is\ unreachable | unhandled\ system\ error | remote\ process\ exited
                | communicator\ was\ aborted)
            | ncclSystemError | ncclRemoteError | failed\ to\ pass\ monitoredBarrier
            | Watchdog\ caught\ collective\ operation\ timeout"""
        ),
    ),
    _Rule(cause=Cause.unsaved, names=frozenset({"UnsavedStateError"})),
)
"""The first rule that matches decides the class."""

_CHILD_KILLED = lazy_pattern(
    r"worker \(pid.*(is killed by signal: Killed|exited unexpectedly)|was terminated abruptly"
)
"""How a rank reports that its own child (a data loader's worker) was killed by SIGKILL."""
_CHILD_CRASHED = lazy_pattern(r"worker \(pid.*is killed by signal: (?!Killed)")
"""How it reports one that another signal ended, such as SIGBUS if /dev/shm is full."""


def classify_rank_exit(exit_: RankExit) -> Cause:
    """Return the class of a rank's end.

    If an exception matches no rule, those in its group and those it was raised from are tried.
    `exit_.oom` counts only if SIGKILL killed something: the rank, the child that its shell reports,
    or a worker that its exception mentions.
    """
    if exit_.oom and _was_killed_by_sigkill(exit_):
        return Cause.host_oom
    for name, message in _list_chained_exceptions(exit_):
        for rule in _RULES:
            if rule.matches_exception(name, message):
                return rule.cause
    if exit_.exception is not None:
        if _was_child_killed(exit_):
            return Cause.signal
        return Cause.crash if _CHILD_CRASHED.search(exit_.message or "") else Cause.exception
    if exit_.signal is None:
        return Cause.exit_code
    return Cause.signal if exit_.signal in FROM_OUTSIDE else Cause.crash


def _was_killed_by_sigkill(exit_: RankExit) -> bool:
    by_signal = exit_.signal == "SIGKILL" or exit_.code == _SHELL_SIGKILL
    return by_signal or _was_child_killed(exit_)


def _was_child_killed(exit_: RankExit) -> bool:
    """Whether a rank says that its child was killed, or lost a loader's worker over a batch."""
    torn = exit_.exception in {"ConnectionResetError", "EOFError", "ConnectionRefusedError"}
    lost = torn and ", in _try_get_data\n" in (exit_.traceback or "")
    return lost or bool(_CHILD_KILLED.search(exit_.message or ""))


def _list_chained_exceptions(exit_: RankExit) -> Iterator[tuple[str, str]]:
    """Yield names and messages of the exception, those in its group, those it was raised `from`."""
    if exit_.exception is None:
        return
    yield exit_.exception, exit_.message or ""
    for grouped in _GROUPED.finditer(exit_.traceback or ""):
        yield grouped[1], grouped[2] or ""
    own = (exit_.traceback or "").rpartition(_IN_HANDLING)[2]
    for earlier in reversed(own.split(_DIRECT_CAUSE)[:-1]):
        said = [line for line in earlier.splitlines() if re.match(r"(?!Traceback )\S", line)]
        head, _, message = "\n".join(said).partition(":")
        yield head.rpartition(".")[2], message


def compute_failure_signature(exit_: RankExit) -> str:
    """Return a text that is the same if the same failure happens again, and only then.

    It holds the class, then what distinguishes the failure within it: the signal, or the exit code and what
    was printed last, or for an exception its type, the functions it passed through, its message, and the
    exceptions in its group; all without the parts that differ between ranks. Line numbers are left out: the
    failure is the same after an edit above it, and CUDA reports kernel errors at whichever line comes next. A
    failure that depends on circumstances (memory, disk, peers) is the same failure anywhere in the code.
    """
    cause = classify_rank_exit(exit_)
    if cause.has_trait(Trait.by_circumstance):
        return str(cause)
    if exit_.exception is None and exit_.signal is not None:
        return f"{cause}-{exit_.signal}"
    if exit_.exception is None:
        printed = dict.fromkeys(_generalize_message(line) for line in (exit_.message or "").splitlines())
        return f"{cause}-{exit_.code}" + (f"-{_hash_parts(printed)}" if printed else "")
    told = exit_.traceback or ""
    grouped = (f"{match[1]}: {_generalize_message(match[2] or '')}" for match in _GROUPED.finditer(told))
    parts = (exit_.exception, *_list_inner_frames(told), _generalize_message(exit_.message or ""), *grouped)
    return f"{cause}-{_hash_parts(parts)}"


def _hash_parts(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:_LENGTH]


_GROUPED = lazy_pattern(r"^ {4,}\| (?:\w+\.)*(\w+)(?:: (.*))?$", re.MULTILINE)
"""An exception in an `ExceptionGroup`."""


_FRAME = lazy_pattern(r'^[ |+]*File "(?P<file>.*)", line \d+, in (?P<name>.+)$', re.MULTILINE)
_OF_LIBRARIES = lazy_pattern(r"/(site|dist)-packages/|/python3\.\d+t?/|/hpckit/runtime/|^<")


def _list_inner_frames(traceback: str) -> list[str]:
    """Return file and function of the innermost frames in the user's code, else of all."""
    last = traceback.rpartition("Traceback (most recent call last):")[2]
    frames = [(match["file"], match["name"]) for match in _FRAME.finditer(last)]
    own = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
    chosen = (own or frames)[-_FRAMES:]
    return [f"{PurePosixPath(file).name}:{name}" for file, name in chosen]


_GENERAL = (
    (lazy_pattern(r"(?<![\w.])(?:~|\.{0,2})/[^\s'\",;:()\[\]]*[^\s'\",;:()\[\].]"), "PATH"),
    (lazy_pattern(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (lazy_pattern(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*\b"), "#"),
    (lazy_pattern(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"), "#"),
    (lazy_pattern(r"(?<![\w#])[+-]?(?:nan|inf)\b"), "#"),
    (lazy_pattern(r"#(?:[\s,.:;x-]*#)+"), "#"),
)
_KEPT = lazy_pattern(r"(\[Errno \d+\]|\bSIG[A-Z]+\d*|\bexit (?:code|status):? -?\d+)")


def _generalize_message(message: str) -> str:
    """Return the message's first line without numbers, addresses and paths.

    Errno and similar numbers are kept, because they say what happened.
    """
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    pieces = _KEPT.split(first[:_MESSAGE_CHARACTERS])
    return "".join(
        piece if place % 2 else _replace_numbers_and_paths(piece) for place, piece in enumerate(pieces)
    )


def _replace_numbers_and_paths(text: str) -> str:
    for pattern, word in _GENERAL:
        text = pattern.sub(word, text)
    return text


_PYTHON_END = lazy_pattern(
    r"^(?P<group>  \+ Exception Group )?Traceback \(most recent call last\):\n"
    r"(?(group)(?:  \|  .*\n)+  \| |(?:[ |+].*\n)+)"
    r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$(?(group)(?:\n  [ +|].*)*)",
    re.MULTILINE,
)
_CPP_END = lazy_pattern(
    r"^terminate called after throwing an instance of '(?P<name>[^']+)'\n"
    r"(?:\s*what\(\):\s*(?P<message>.*))?",
    re.MULTILINE,
)


_RANK_PREFIX = lazy_pattern(r"^\[rank\d+\]: ?", re.MULTILINE)
"""The prefix that torch puts before every line of a traceback once there is a process group."""
_OF_OTHERS = lazy_pattern(
    r"\[(?:[WEIF]?\d\d|INFO|WARN|ERROR|DEBUG)|wandb: |\S+:\d+: |\d{4}-\d\d-\d\d"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):\w+:|Exception ignored |Traceback "
)
"""How a line begins that is a log's, a warning's, or another program's."""
_LAST_LINES = 5


def add_exception_from_log(exit_: RankExit, log: str) -> RankExit:
    """Return the record with the exception at the end of this log, if it has none itself.

    This is for processes that leave no record themselves: a user's Python command, which prints its
    traceback and returns 1, and C++ that ends the process by SIGABRT (NCCL's watchdog). For another
    program that ended with an exit code, the last lines it printed are the message. `log` is the
    last part of what the rank printed.
    """
    cpp = exit_.signal == "SIGABRT"
    if exit_.exception is not None or not (cpp or exit_.code):
        return exit_
    log = _RANK_PREFIX.sub("", log)
    ends = list((_CPP_END if cpp else _PYTHON_END).finditer(log)) if cpp or exit_.code == 1 else []
    if not ends or log.count("\n", ends[-1].end()) > _LOG_LINES:
        return exit_ if cpp else replace(exit_, message=_last_log_lines(log))
    end = ends[-1]
    more = "" if cpp or end["group"] else _find_rest_of_message(log[end.end() :])
    return replace(
        exit_,
        exception=re.split(r"::|\.", end["name"])[-1],
        message=(end["message"] or "") + more,
        traceback=None if cpp else log[_find_traceback_chain_start(ends, log) : end.end()] + more + "\n",
    )


def _find_rest_of_message(after: str) -> str:
    """Return the other lines of an exception's message, each after its line end.

    What a library prints as Python ends is none: it begins with a mark of its own.
    """
    lines = list(takewhile(lambda line: not _OF_OTHERS.match(line), after.splitlines()[1:]))
    return "".join(f"\n{line}" for line in lines).rstrip()


def _last_log_lines(log: str) -> str | None:
    lines = [line.rstrip() for line in log.splitlines() if line.strip()][-_LAST_LINES:]
    while len(lines) > 1 and len("\n".join(lines)) > _MESSAGE_CHARACTERS:
        del lines[0]  # a line that begins in its middle says something else
    return "\n".join(lines)[-_MESSAGE_CHARACTERS:] or None


def _find_traceback_chain_start(ends: Sequence[re.Match[str]], log: str) -> int:
    start = ends[-1].start()
    for earlier in reversed(ends[:-1]):
        between = log[earlier.end() : start]
        if _DIRECT_CAUSE not in between and _IN_HANDLING not in between:
            break
        start = earlier.start()
    return start
