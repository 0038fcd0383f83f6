"""Parses the output of squeue, sacct and scontrol. Pure.

It covers their fields, the grammar of array ranges, moments, and the two notations of an exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, SlurmState, parse_slurm_state
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

SQUEUE_FIELDS = (*("JobArrayID", "State", "NodeList", "RestartCnt", "exit_code", "Reason"), "StartTime")
SQUEUE_FORMAT = ",".join(f"{name}:0|" for name in SQUEUE_FIELDS)
"""For --Format: width 0 means unlimited, and `|` ends each field. --format has no restart count."""

SACCT_FIELDS = ("JobID", "State", "NodeList", "ExitCode")
SACCT_FORMAT = ",".join(SACCT_FIELDS)
"""For --format. `Restarts` came after 22.05, and `Reason` is why a job had to wait."""

TERMS_FIELDS = (*("ReqNodes", "Partition", "EndTime", "PreemptTime", "Reservation"), *("Requeue", "QOS"))
TERMS_FORMAT = ",".join(f"{name}:0|" for name in TERMS_FIELDS)
"""For --Format: what is known beforehand about the end of one job."""

EXCLUDED_FORMAT = "%x"
"""For --format: the nodes that a job must not use; --Format has no name for them in 22.05."""

NOT_STARTED = 53
"""The signal shown for a script that slurmd could not start: ESLURMD_SETUP_ENVIRONMENT_ERROR is
4021, and 4021 & 0x7f is 53. Nearly always, the log could not be opened.
"""

_NOT_STARTED_REASON = (
    "JobLaunchFailure: the node could not open the log in the launch folder; does it see that file system?"
)
_LEAVING = frozenset({"DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING"})
"""Words in a node's state: jobs continue, but no new one starts there. FAIL: expected to fail."""

_NODE = lazy_pattern(r"NodeName=(\S+).*?\sState=(\S+)")
_NODE_REASON = lazy_pattern(r"\sReason=(.*?)(?:\s+\[[^\s\[\]]+@[^\s\[\]]+\]|$)")
_NOTHING = frozenset({"", "None", "(null)", "N/A", "n/a", "None assigned"})
_SETTING = lazy_pattern(r"(\w+)[ \t]*=[ \t]*(\S*)")
_AS_OF = lazy_pattern(r"Configuration data as of (?P<at>\S+)")
_ARRAY = lazy_pattern(r"(?P<main>\d+)_\[(?P<ranges>[\d,:-]+)(?P<cut>\.\.\.)?(?:%\d+)?\]\Z")
_MOST = 4_000_000
"""Elements of an array; Slurm's own MaxArraySize is below that."""
_SINGLE = lazy_pattern(r"\d+(?:_\d+)?\Z")
_JOB = lazy_pattern(r"\d+(?:[_+.]|\Z)")


def has_job_rows(text: str, fields: Sequence[str]) -> bool:
    """Return whether any line has these fields, of which the first two are a job and its state."""
    return any(
        _JOB.match(job) is not None and parse_slurm_state(state).base is not BaseState.unknown
        for job, state, *_ in split_rows(text, len(fields))
    )


def parse_squeue(text: str, now: datetime) -> Iterator[Observation]:
    """Yield squeue's report, one observation for each job or array element."""
    for job, state, nodes, restarts, code, reason, start in split_rows(text, len(SQUEUE_FIELDS)):
        parsed = parse_slurm_state(state)
        waits = parsed.base is BaseState.pending
        for job_id in parse_job_ids(job):
            yield Observation(
                job=job_id,
                state=parsed,
                seen_at=now,
                nodes=_empty_if_placeholder(nodes),
                reason=_format_reason(reason, code),
                exit_code=_exit_code_if_ended(parsed, code),
                restarts=int(restarts) if restarts.isdecimal() else 0,
                expected_start=parse_slurm_time(start) if waits else None,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """The terms of a running job: the nodes it requires, where it runs, and until when.

    `reservation` is empty without one. While a preempted job may continue, `end_at` is the end of
    its grace. `requeueable` is whether Slurm may start the job again.
    """

    required: tuple[str, ...]
    partition: str
    end_at: datetime | None
    preempted_at: datetime | None
    reservation: str = ""
    requeueable: bool = True
    qos: str = ""


def parse_job_terms(text: str) -> JobTerms | None:
    """Return squeue's report of one job in TERMS_FORMAT; None if it is empty."""
    for row in split_rows(text, len(TERMS_FIELDS)):
        required, partition, end, preempted, reservation, requeue, qos = row
        return JobTerms(
            required=parse_node_names(required),
            partition=partition,
            end_at=parse_slurm_time(end),
            preempted_at=parse_slurm_time(preempted),
            reservation=_empty_if_placeholder(reservation),
            requeueable=requeue != "0",
            qos=_empty_if_placeholder(qos),
        )
    return None


def parse_node_names(text: str) -> tuple[str, ...]:
    """Return the nodes named in a squeue column or a setting; empty for `(null)`, `ALL`."""
    try:
        return expand_hostlist(_empty_if_placeholder(text.strip()))
    except ValueError:
        return ()


def parse_slurm_time(text: str) -> datetime | None:
    """Return a moment from seconds since 1970, or from Slurm's standard form in local time.

    None if there is none: `N/A`, `Unknown`, `NONE`.
    """
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text), UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_controller_time(text: str) -> datetime | None:
    """Return the controller's clock when it answered `scontrol show config`."""
    found = _AS_OF.match(text)
    return parse_slurm_time(found["at"]) if found else None


def parse_scontrol_settings(text: str) -> dict[str, str]:
    """Return `scontrol show config` or `show partition` by name; of equal names the first."""
    found: dict[str, str] = {}
    for name, value in _SETTING.findall(text):
        found.setdefault(name, value)
    return found


def parse_draining_nodes(text: str) -> dict[str, str]:
    """Return the nodes being drained or expected to fail, each with the reason given.

    From `scontrol --oneliner show node`: `State=MIXED+DRAIN`, with user and time after the reason.
    Maintenance, a reservation or a node that does not respond does not count by itself.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        node = _NODE.match(line)
        if node is None or _LEAVING.isdisjoint(re.split(r"[^A-Z_]+", node[2].upper())):
            continue
        reason = _NODE_REASON.search(line, node.end())
        found[node[1]] = "" if reason is None else _empty_if_placeholder(reason[1].strip())
    return found


def parse_sacct(text: str, now: datetime) -> Iterator[Observation]:
    """Yield sacct's report; it has no restart counts, and the last row of a job is the latest."""
    for job, state, nodes, code in split_rows(text, len(SACCT_FIELDS)):
        parsed = parse_slurm_state(state)
        for job_id in parse_job_ids(job):
            yield Observation(
                job=job_id,
                state=parsed,
                seen_at=now,
                nodes=_empty_if_placeholder(nodes),
                reason=_format_reason("", code),
                exit_code=_exit_code_if_ended(parsed, code),
            )


def parse_living_jobs(text: str) -> list[str]:
    """Return the jobs in a listing that have not ended, each array element separately."""
    return [
        one
        for job, state in split_rows(text, 2)
        if not parse_slurm_state(state).ended
        for one in parse_job_ids(job) or (job,)
    ]


def parse_job_ids(text: str) -> tuple[str, ...]:
    """Return the jobs that a listing means: `7_[0-2,5%4]` is 7_0, 7_1, 7_2, 7_5.

    Slurm writes elements at even distances, of which some were cancelled, as `7_[4-22:2]`.

    For a range that Slurm has cut off, `7_[0-2,5...]`, return the certainly complete part and
    `rest("7")`. Steps, components of heterogeneous jobs and unreadable text are left out.
    """
    if _SINGLE.match(text):
        return (text,)
    match = _ARRAY.match(text)
    if match is None:
        return ()
    main, ranges = match["main"], match["ranges"]
    left = (name_cut_off_elements(main),) if match["cut"] else ()
    # The last piece may be the beginning of a longer number.
    ranges = ranges.rpartition(",")[0] if match["cut"] else ranges
    try:
        found = [index for part in ranges.split(",") if part for index in _parse_element_range(part)]
    except ValueError:
        return left
    return (*(f"{main}_{index}" for index in found), *left)


def _parse_element_range(part: str) -> range:
    """Return the elements in `4`, `4-22` or `4-22:2`; raises ValueError."""
    first, _, more = part.partition("-")
    last, _, step = more.partition(":")
    return range(int(first), min(int(last or first), int(first) + _MOST) + 1, int(step or 1))


def name_cut_off_elements(main: str) -> str:
    """Return the name for the elements of an array that a listing has cut off.

    squeue and sacct cut ranges at 64 characters if SLURM_BITSTR_LEN does not reach them.
    """
    return f"{main}_[...]"


def parse_exit_code(text: str) -> int | None:
    """Return an exit code as a shell reports it, from `code:signal` or from a wait status.

    A signal becomes 128 + its number, so `0:9` becomes 137; None if it cannot be read.
    """
    signal = _parse_exit_signal(text)
    if signal is None:
        return None
    if signal:
        return 128 + signal
    code = int(text.partition(":")[0])
    return code if ":" in text else code >> 8 & 0xFF


def _parse_exit_signal(text: str) -> int | None:
    """Return the signal in `code:signal` (sacct, newer squeue) or a wait status (squeue)."""
    code, colon, signal = text.partition(":")
    if not code.isdecimal() or (colon and not signal.isdecimal()):
        return None
    return int(signal) if colon else int(code) & 0x7F


def _exit_code_if_ended(state: SlurmState, code: str) -> int | None:
    """Return the exit code of an ended job; 0 only if it means success (CANCELLED has 0:0 too)."""
    found = parse_exit_code(code) if state.ended else None
    return found if found or state.base is BaseState.completed else None


def _format_reason(reason: str, code: str) -> str:
    return _NOT_STARTED_REASON if _parse_exit_signal(code) == NOT_STARTED else _empty_if_placeholder(reason)


def _empty_if_placeholder(text: str) -> str:
    return "" if text in _NOTHING else text


def split_rows(text: str, columns: int) -> Iterator[list[str]]:
    """Yield the cells of each line that has enough of them, as far as they are asked for."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) >= columns:
            yield cells[:columns]
