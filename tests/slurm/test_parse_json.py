"""What is read from `squeue --json` and `sacct --json`: the same as from their text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.run import Observation
from hpckit.model.states import BaseState, StateFlag, parse_slurm_state
from hpckit.slurm.parse import SACCT_FIELDS, SQUEUE_FIELDS, parse_sacct, parse_squeue
from hpckit.slurm.parse_json import format_json_errors, json_jobs_to_lines

DATA = Path(__file__).parents[1] / "data"
RELEASES = sorted(path.parent.name for path in DATA.glob("*/squeue.json"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)

Reader = Callable[[str, datetime], Iterable[Observation]]
PROGRAMS: list[tuple[str, Reader, tuple[str, ...]]] = [
    ("squeue", parse_squeue, SQUEUE_FIELDS),
    ("sacct", parse_sacct, SACCT_FIELDS),
]


def read(text: str | None, reader: Reader) -> dict[str, Observation]:
    """Return what is read, by job; of who cancelled a job, text has the number, JSON the name."""
    assert text is not None
    by = re.compile(" by .*")
    return {
        one.job: replace(one, state=parse_slurm_state(by.sub("", one.state.text)))
        for one in reader(text, NOW)
    }


def queue_of(*jobs: object) -> list[Observation]:
    """Return what is read of these jobs of a `squeue --json`."""
    lines = json_jobs_to_lines(json.dumps({"jobs": jobs}), SQUEUE_FIELDS)
    assert lines is not None
    return list(parse_squeue(lines, NOW))


def number(value: int | None) -> dict[str, Any]:
    """Return a number as data parsers from v0.0.39 on write it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


@pytest.mark.parametrize(("program", "reader", "fields"), PROGRAMS)
@pytest.mark.parametrize("release", RELEASES)
def test_json_and_text_of_one_queue_are_read_alike(
    release: str, program: str, reader: Reader, fields: tuple[str, ...]
) -> None:
    """Recorded one after the other, both give the same jobs in the same states, with same ends."""
    text = read((DATA / release / f"{program}.txt").read_text(), reader)
    found = read(json_jobs_to_lines((DATA / release / f"{program}.json").read_text(), fields), reader)
    if (release, program) == ("22.05", "sacct"):
        # Its JSON has return code 0 for every end but by a signal: then there is none, not 0.
        failed = json.loads((DATA / release / "jobs.json").read_text())["failed"]
        assert found[failed].exit_code is None
        found[failed] = replace(found[failed], exit_code=3)
    assert len(text) >= 18
    assert found == text


@pytest.mark.parametrize("release", RELEASES)
def test_json_tells_who_cancelled_a_job(release: str) -> None:
    """Of sacct, beside the state, as in its text."""
    text = json_jobs_to_lines((DATA / release / "sacct.json").read_text(), SACCT_FIELDS) or ""
    states = {one.state.text for one in parse_sacct(text, NOW)}
    assert "CANCELLED by root" in states


# By hand, from the sources of each data parser; where it was recorded, see above.
@pytest.mark.parametrize(
    ("job", "line"),
    [
        # v0.0.37: an element that is none is NO_VAL, not null.
        (
            {"job_id": 7, "array_job_id": 7, "array_task_id": 0xFFFFFFFE, "array_task_string": "3"},
            "7_[3]||||||",
        ),
        # v0.0.38 (22.05): all numbers bare, the exit code a wait status.
        (
            {
                "job_id": 9,
                "array_job_id": 7,
                "array_task_id": 2,
                "job_state": "FAILED",
                "exit_code": 768,
                "nodes": "n[1-2]",
                "restart_cnt": 1,
                "state_reason": "NonZeroExitCode",
            },
            "7_2|FAILED|n[1-2]|1|768|NonZeroExitCode|",
        ),
        # v0.0.39 (23.02): numbers as objects, the wait status too; states still one word.
        (
            {
                "job_id": 7,
                "array_job_id": number(0),
                "array_task_id": number(None),
                "job_state": "RUNNING",
                "exit_code": number(9),
                "restart_cnt": number(2),
            },
            "7|RUNNING||2|9||",
        ),
        # v0.0.40 on (23.11): states a list, the exit code in parts.
        (
            {
                "job_id": 7,
                "job_state": ["COMPLETED", "COMPLETING"],
                "exit_code": {"return_code": number(None), "signal": {"id": number(9)}},
                "state_reason": "RaisedSignal",
                "state_description": "RaisedSignal:9(Killed)",
            },
            "7|COMPLETED,COMPLETING|||0:9|RaisedSignal:9(Killed)|",
        ),
        # sacct of 22.05 keeps waiting elements as a bitmap, as all do, and numbers bare.
        (
            {
                "job_id": 7,
                "array": {"job_id": 7, "task_id": None, "task": "0x3F1"},
                "state": {"current": "PENDING"},
                "exit_code": {"return_code": None, "signal": {"signal_id": 53}},
                "nodes": "None assigned",
            },
            "7_[0,4,5,6,7,8,9]|PENDING|None assigned||0:53||",
        ),
        # Ranges with a limit, cut where SLURM_BITSTR_LEN was not heard.
        ({"job_id": 7, "array_job_id": 7, "array_task_string": "1-3,5...%2"}, "7_[1-3,5...%2]||||||"),
        ({"job_id": 8, "het_job_id": number(7), "het_job_offset": number(1)}, "7+1||||||"),
        ({"job_id": 7, "het": {"job_id": 0, "job_offset": None}}, "7||||||"),
    ],
)
def test_json_of_every_generation_becomes_the_line_of_text(job: object, line: str) -> None:
    """Wherever a release puts a field, and however it writes a number."""
    assert json_jobs_to_lines(json.dumps({"jobs": [job]}), SQUEUE_FIELDS) == line


def test_json_state_with_flags_is_not_yet_an_end() -> None:
    """Several words are one state: what completes has not ended."""
    (one,) = queue_of({"job_id": 7, "job_state": ["FAILED", "COMPLETING"]})
    assert (one.state.base, one.state.flags) == (BaseState.failed, frozenset({StateFlag.completing}))
    assert not one.state.ended


@pytest.mark.parametrize(
    ("job", "left"),
    [
        ({"job_state": ["RUNNING"]}, []),
        ({"job_id": None}, []),
        ({"job_id": "7"}, []),
        ({"job_id": -1}, []),
        ({"job_id": True}, []),
        ("7", []),
        (None, []),
        ({"job_id": 7}, [("7", BaseState.unknown, "", None, 0)]),
        ({"job_id": 7, "job_state": 3, "nodes": {}}, [("7", BaseState.unknown, "", None, 0)]),
        ({"job_id": 7, "job_state": ["RUNNING", None]}, [("7", BaseState.running, "", None, 0)]),
        (
            {"job_id": 7, "job_state": "FAILED", "exit_code": "3", "restart_cnt": [1]},
            [("7", BaseState.failed, "", None, 0)],
        ),
        (
            {"job_id": 7, "job_state": "FAILED", "exit_code": {"return_code": {"set": True}}},
            [("7", BaseState.failed, "", None, 0)],
        ),
        ({"job_id": 7, "array_job_id": 7, "array_task_string": "0xZZ"}, []),
        ({"job_id": 7, "array_job_id": 7, "array_task_string": "9-1"}, []),
        ({"job_id": 7, "nodes": "n1|n2\nn3"}, [("7", BaseState.unknown, "n1 n2 n3", None, 0)]),
    ],
)
def test_json_with_odd_fields_costs_the_field_or_the_row(job: object, left: list[object]) -> None:
    """Never more: the job beside it is read."""
    *found, last = queue_of(job, {"job_id": 99, "job_state": "RUNNING", "restart_cnt": 1})
    assert (last.job, last.restarts) == ("99", 1)
    assert [(one.job, one.state.base, one.nodes, one.exit_code, one.restarts) for one in found] == left


WORDS = ("job_id", "array", "array_job_id", "array_task_id", "array_task_string", "job_state")
MORE = ("exit_code", "state", "current", "nodes", "number", "set", "infinite", "task", "signal")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS + MORE) | st.text(max_size=3), inner, max_size=9)
    ),
    max_leaves=20,
)


@given(jobs=st.lists(st.dictionaries(st.sampled_from(WORDS + MORE), ANYTHING), max_size=4))
def test_json_of_any_shape_is_read_without_an_error(jobs: list[dict[str, Any]]) -> None:
    """Whatever stands in the fields, each row is of one job, with an id of Slurm's."""
    for one in queue_of(*jobs):
        assert re.fullmatch(r"\d+(_(\d+|\[\.\.\.\]))?", one.job)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7|RUNNING|n1|0|0|None|",
        "{",
        '{"jobs": [{"job_id": 7}',
        '{"jobs": {}}',
        '{"meta": {}}',
        "[]",
        "{" * 100_000,
        '{"jobs": ' + "[" * 100_000,
        '{"jobs": [], "errors": [{"error": "Unspecified error", "error_number": -1}]}',
    ],
)
def test_json_that_is_no_listing_is_not_taken_for_an_empty_queue(text: str) -> None:
    """Torn, of another shape, or telling of an error: then nothing is known of any job."""
    assert json_jobs_to_lines(text, SQUEUE_FIELDS) is None


def test_json_without_jobs_is_an_empty_queue() -> None:
    """Also where sacct of 22.05 calls it an error that nothing was found."""
    nothing = {"error": "Nothing found with query", "error_number": 9003}
    assert json_jobs_to_lines('site squeue, cached\n {"jobs": [], "errors": []}', SQUEUE_FIELDS) == ""
    assert json_jobs_to_lines(json.dumps({"jobs": [], "errors": [nothing]}), SACCT_FIELDS) == ""
    assert format_json_errors(json.dumps({"jobs": [], "errors": [nothing]})) == ""


def test_json_says_what_is_wrong_in_slurms_words() -> None:
    """The errors of an answer, for the person who sees none of its jobs."""
    errors = [{"error": "Unspecified error"}, {"description": "no host"}, "?"]
    assert format_json_errors(json.dumps({"errors": errors})) == "Unspecified error; no host"


@pytest.mark.parametrize("start", [1767348000, number(1767348000), 0, number(None), None])
def test_json_tells_when_a_waiting_job_is_expected_to_start(start: object) -> None:
    """0 and an unset number are no moment."""
    (one,) = queue_of({"job_id": 7, "job_state": ["PENDING"], "start_time": start})
    expected = datetime.fromtimestamp(1767348000, UTC)
    assert one.expected_start == (expected if "1767348000" in str(start) else None)
