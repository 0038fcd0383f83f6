"""Converts the output of `squeue --json` and `sacct --json` to the rows of the text form. Pure.

It knows where each generation of Slurm's data parser (v0.0.38 of 22.05 to v0.0.45 of 26.05) keeps a
field, and how it writes numbers, states and exit codes. `hpckit.slurm.parse` reads the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpckit.patterns import lazy_pattern

NO_FILTER: Mapping[str, object] = {}

Job = Mapping[str, Any]

_BEGIN = lazy_pattern(r"^[ \t]*\{", re.MULTILINE)
_NOTHING_FOUND = 9003
"""ESLURM_REST_EMPTY_RESULT: for sacct 22.05 it is an error if there is no such job."""

_NO_NUMBER = 0xFFFFFFFE
"""NO_VAL; one more is INFINITE. Older parsers print them as numbers."""


def json_jobs_to_lines(
    text: str, fields: Sequence[str], only: Mapping[str, object] = NO_FILTER
) -> str | None:
    """Return the jobs in a JSON answer as lines of these fields; None if it is not such an answer.

    An answer without jobs but with an error is None too: squeue 22.05 exits with 0 nevertheless. `only` gives
    required values of JSON fields: before 24.11, squeue prints every job in JSON, whatever was requested.
    Lines before the JSON (a wrapper's greeting) and jobs without an id are skipped.
    """
    answer = _parse_json_answer(text)
    jobs = answer.get("jobs")
    if not isinstance(jobs, list) or (not jobs and _list_json_errors(answer)):
        return None
    whole = (job for job in jobs if isinstance(job, dict))
    meant = (job for job in whole if all(job.get(key, only[key]) == only[key] for key in only))
    cells = ([_clean_cell(_CELLS[name](job)) for name in fields] for job in meant)
    return "\n".join("|".join(row) for row in cells if row[0])


def format_json_errors(text: str) -> str:
    """Return the errors in a JSON answer; empty if there are none."""
    return "; ".join(_list_json_errors(_parse_json_answer(text)))


def _parse_json_answer(text: str) -> Mapping[str, Any]:
    begin = _BEGIN.search(text)
    if begin is None:
        return {}
    try:
        found: Mapping[str, Any] = json.JSONDecoder().raw_decode(text, begin.end() - 1)[0]
    except (ValueError, RecursionError):
        return {}
    return found


def _list_json_errors(answer: Mapping[str, Any]) -> list[str]:
    errors = answer.get("errors")
    told = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    told = [error for error in told if error.get("error_number") != _NOTHING_FOUND]
    return [_find_text_at_path(error, "error") or _find_text_at_path(error, "description") for error in told]


def _format_job_id(job: Job) -> str:
    """Return an id as in text: `7`, `7_3`, `7_[0-2,5%4]`; `7+1` for a heterogeneous job."""
    array = _find_number_at_paths(job, "array_job_id", "array/job_id")
    if array:
        return f"{array}{_format_array_suffix(job)}"
    whole = _find_number_at_paths(job, "het_job_id", "het/job_id")
    if whole:
        return f"{whole}+{_find_number_at_paths(job, 'het_job_offset', 'het/job_offset') or 0}"
    return _format_number_at(job, "job_id")


def _format_array_suffix(job: Job) -> str:
    index = _find_number_at_paths(job, "array_task_id", "array/task_id")
    if index is not None:
        return f"_{index}"
    ranges = _first_value_at_paths(job, "array_task_string", "array/task")
    if not isinstance(ranges, str) or not ranges:
        return ""
    return f"_[{_expand_bitmap_ranges(ranges).strip('[]')}]"


def _expand_bitmap_ranges(ranges: str) -> str:
    """Return the ranges of a hexadecimal bitmap, which the accounting stores; others unchanged."""
    if not ranges.startswith("0x"):
        return ranges
    try:
        bits = f"{int(ranges.partition('%')[0], 16):b}"[::-1]
    except ValueError:
        return ranges
    return ",".join(str(index) for index, bit in enumerate(bits) if bit == "1")


def _format_job_state(job: Job) -> str:
    found = _first_value_at_paths(job, "job_state", "state/current")
    words = found if isinstance(found, list) else [found]
    state = ",".join(word for word in words if isinstance(word, str))
    by = _find_text_at_path(job, "kill_request_user") if state.startswith("CANCELLED") else ""
    return f"{state} by {by}" if by else state


def _format_exit_code(job: Job) -> str:
    """Return `code:signal`, or a wait status if that was printed."""
    status = _find_number_at_paths(job, "exit_code")
    if status is not None:
        return str(status)
    code = _find_number_at_paths(job, "exit_code/return_code")
    signal = _find_number_at_paths(job, "exit_code/signal/id", "exit_code/signal/signal_id")
    return "" if code is None and signal is None else f"{code or 0}:{signal or 0}"


def _first_value_at_paths(job: Job, *paths: str) -> object:
    for path in paths:
        found: object = job
        for name in path.split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return found
    return None


def _find_number_at_paths(job: Job, *paths: str) -> int | None:
    """Return a number, bare or as {"set", "infinite", "number"}; None if there is none."""
    found = _first_value_at_paths(job, *paths)
    if isinstance(found, dict):
        there = found.get("set", True) and not found.get("infinite")
        found = found.get("number") if there else None
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < _NO_NUMBER else None


def _format_number_at(job: Job, path: str) -> str:
    found = _find_number_at_paths(job, path)
    return "" if found is None else str(found)


def _find_text_at_path(job: Job, path: str) -> str:
    found = _first_value_at_paths(job, path)
    return found if isinstance(found, str) else ""


def _clean_cell(cell: str) -> str:
    """Return a cell without characters that would end its field or line."""
    return " ".join(cell.replace("|", " ").split())


_CELLS: Mapping[str, Callable[[Job], str]] = {
    "JobArrayID": _format_job_id,
    "JobID": _format_job_id,
    "State": _format_job_state,
    "Name": lambda job: _find_text_at_path(job, "name"),
    "NodeList": lambda job: _find_text_at_path(job, "nodes"),
    "RestartCnt": lambda job: _format_number_at(job, "restart_cnt"),
    "exit_code": _format_exit_code,
    "ExitCode": _format_exit_code,
    "Reason": lambda job: (
        _find_text_at_path(job, "state_description") or _find_text_at_path(job, "state_reason")
    ),
    "StartTime": lambda job: str(_find_number_at_paths(job, "start_time") or ""),
}
"""The function for each field of a text listing."""
