"""Promises of hpckit.report.text."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.counted import format_step_of_total
from hpckit.model.moment import format_slurm_duration
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RunState, parse_slurm_state
from hpckit.report.failures import shorten_user_traceback
from hpckit.report.rows import LaunchHead, build_run_row
from hpckit.report.text import (
    TextTable,
    build_runs_table,
    format_launch_head,
    format_metrics,
    format_number,
    format_share_percent,
    render_plain_text,
    render_status_page,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = LaunchHead(id="demo-1", name="demo", folder="/shared/demo-1", created_at=START)


def test_plain_page_is_aligned_and_complete() -> None:
    """Cells of a column start at the same place, whatever stands in them."""
    sheet = TextTable(header=("run", "state"), rows=(("0", "running"), ("10", "completed")))
    assert render_plain_text([sheet, "end"]) == "run  state\n0    running\n10   completed\nend"


def test_plain_page_of_no_rows_is_its_header() -> None:
    """An empty table still says what it would hold."""
    assert render_plain_text([TextTable(header=("run",), rows=())]) == "run"


def test_status_page_leaves_empty_columns_out() -> None:
    """A local launch shows no columns for Slurm."""
    record = RunRecord(id="demo-1.0", index=0, overrides=(), folder="/x")
    text = render_plain_text(render_status_page(HEAD, [build_run_row(RunView(record=record))], START))
    assert text.splitlines() == [
        "demo-1  created 0:00 ago",
        "/shared/demo-1",
        "run  state",
        "0    pending",
        "1 run: 1 pending",
    ]


def test_status_page_shows_a_failure_of_many_runs_once() -> None:
    """A sweep that failed as a whole does not bury its table, nor do its notes."""
    lost = RunRecord(id="demo-1.0", index=0, overrides=(), folder="/x", attempt=1, state=RunState.running)
    records = [replace(lost, id=f"demo-1.{index}", index=index) for index in range(8)]
    rows = [build_run_row(RunView(record=record, alive=False)) for record in records]
    lines = render_plain_text(render_status_page(HEAD, rows, START)).splitlines()
    assert lines[2].split() == ["run", "state", "cause"]
    assert [line for line in lines if line.startswith("note: ")] == [
        "note: runs 0-7: its local executor is gone; nothing will start it"
    ]
    assert sum("8 runs interrupted (0-7): launcher_lost" in line for line in lines) == 1


def test_status_page_says_when_slurm_expects_to_start_what_waits() -> None:
    """Once for all runs that wait for the same, by the first that starts; a plan may be overdue."""
    rows = []
    for index, hours in enumerate((3, 2, None)):
        start = None if hours is None else START + timedelta(hours=hours)
        record = RunRecord(id=f"demo-1.{index}", index=index, overrides=(), folder="/x", job="7")
        seen = Observation(
            job="7",
            state=parse_slurm_state("PENDING"),
            seen_at=START,
            reason="Priority",
            expected_start=start,
        )
        rows.append(build_run_row(RunView(record=record, observation=seen)))
    (line,) = (
        splitline
        for splitline in render_plain_text(render_status_page(HEAD, rows, START)).splitlines()
        if "note" in splitline
    )
    words = "note: runs 0-2: Slurm: Priority: jobs of higher priority wait as well; expected to start"
    assert line.startswith(words)
    assert line.endswith(", in 2 h")
    unknown = replace(rows[0], note="")
    late = render_plain_text(render_status_page(HEAD, [unknown], START + timedelta(days=1))).splitlines()
    assert any(line.startswith("note: demo-1.0: Slurm: it waits; expected to") for line in late)
    assert not any(", in " in line for line in late)


@pytest.mark.parametrize(
    ("step", "total", "text"),
    [(None, None, ""), (0, 4, "1 of 4"), (3, 4, "4 of 4"), (6, None, "7"), (6, 4, "7")],
)
def test_steps_are_counted_from_one(step: int | None, total: int | None, text: str) -> None:
    """A run that has completed its four steps has done 4 of 4, although the last is number 3."""
    assert format_step_of_total(step, total) == text


@pytest.mark.parametrize("word", ["PENDING", "RUNNING", "COMPLETING"])
def test_old_answer_of_slurm_does_not_stand_beside_an_end(word: str) -> None:
    """That a job runs is not said of a run that is known to have completed; an end of its is."""
    record = RunRecord(id="demo-1.0", index=0, overrides=(), folder="/x", state=RunState.completed)
    for said, shown in ((word, False), ("FAILED", True)):
        seen = Observation(job="7", state=parse_slurm_state(said), seen_at=START)
        sheet = build_runs_table([build_run_row(RunView(record=record, observation=seen))], START)
        assert ("slurm" in sheet.header) is shown


def test_attempts_are_shown_once_a_run_was_started_again() -> None:
    """Restarts of ranks in the same attempt are counted in words; a first attempt says nothing."""
    first = RunRecord(id="demo-1.0", index=0, overrides=(), folder="/x", attempt=1, round=0)
    rows = [build_run_row(RunView(record=first))]
    assert "attempt" not in build_runs_table(rows, START).header
    rows += [
        build_run_row(RunView(record=replace(first, index=1, round=2))),
        build_run_row(RunView(record=replace(first, index=2, attempt=2))),
    ]
    table = build_runs_table(rows, START)
    place = table.header.index("attempt")
    assert [row[place] for row in table.rows] == ["1", "1, restart 2", "2"]


def test_head_of_a_launch_with_a_name_of_its_own_has_that_in_a_line() -> None:
    """The id has only what folders may have; the line above stays as narrow as it was."""
    head = replace(HEAD, name="ünïcode")
    assert format_launch_head(head, START).splitlines() == [
        "demo-1  created 0:00 ago",
        "name ünïcode",
        "/shared/demo-1",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3723, "1:02:03"), (86400 * 3 + 5, "3-00:00:05")]
)
def test_duration_is_written_as_slurm_does(seconds: int, text: str) -> None:
    """Days, hours, minutes, seconds, as squeue shows them."""
    assert format_slurm_duration(timedelta(seconds=seconds)) == text
    assert format_slurm_duration(None) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (3, "3"), (True, "True"), ("word", "word"), (None, ""), (1e-9, "1e-09")],
)
def test_number_is_short(value: object, text: str) -> None:
    """Floats have four digits; the rest is as it is."""
    assert format_number(value) == text


def test_percent_has_one_digit() -> None:
    """Shares are shown to a tenth of a percent; an unknown one as nothing."""
    assert (format_share_percent(0.9414), format_share_percent(1), format_share_percent(None)) == (
        "94.1 %",
        "100.0 %",
        "",
    )


def test_metrics_text_shows_the_first_few() -> None:
    """A run that logs much still fits on its line."""
    assert format_metrics({}) == ""
    assert format_metrics({"a": 0.5, "b": 1}) == "a 0.5, b 1"
    assert format_metrics({"a": 1, "b": 2, "c": 3, "d": 4}) == "a 1, b 2, c 3, …"


TRACEBACK = """\
Traceback (most recent call last):
  File "/site-packages/hpckit/runtime/rank.py", line 10, in run
    entry(config, run)
    ~~~~~^^^^^^^^^^^^^
  File "/site-packages/hpckit/experiments/digits.py", line 3, in main
    train()
  File "/home/ann/hpckit/model.py", line 3, in train
    x = 1 / 0
        ~~^~~
ZeroDivisionError: division by zero"""


def test_user_traceback_leaves_out_our_frames_only() -> None:
    """The runtime's frames go with all their lines; experiments' and the user's stay."""
    lines = shorten_user_traceback(TRACEBACK)
    assert lines == (
        "Traceback (most recent call last):",
        '  File "/site-packages/hpckit/experiments/digits.py", line 3, in main',
        "    train()",
        '  File "/home/ann/hpckit/model.py", line 3, in train',
        "    x = 1 / 0",
        "        ~~^~~",
        "ZeroDivisionError: division by zero",
    )


def test_user_traceback_of_our_own_error_stays_whole() -> None:
    """Where all frames are ours, they are all there is to show."""
    ours = "\n".join(TRACEBACK.splitlines()[:4])
    assert shorten_user_traceback(ours) == tuple(ours.splitlines())


def test_user_traceback_shows_the_last_lines() -> None:
    """The end of a traceback says most."""
    text = "\n".join(f"line {number}" for number in range(100))
    lines = shorten_user_traceback(text, shown=3)
    assert lines == ("…", "line 97", "line 98", "line 99")


@given(st.text())
def test_user_traceback_never_raises(text: str) -> None:
    """Whatever a program wrote as its traceback can be shown."""
    assert len(shorten_user_traceback(text)) <= 13


def test_text_imports_rich_only_to_draw() -> None:
    """Plain text and JSON start without rich."""
    code = (
        "import sys, hpckit.report.text, hpckit.report.machine, hpckit.cli.commands.look.status; "
        "print('rich' in sys.modules, 'asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"]


LIBRARY = [
    line
    for number in range(8)
    for line in (f'  File "/opt/lib/python3.12/site-packages/torch/x{number}.py", line 1, in f', "    g()")
]


def test_user_traceback_keeps_the_last_frame_of_the_users_own_code() -> None:
    """However deep in a library the error was raised: the reader needs the line of theirs."""
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "/x/outputs/a/runs/00000/work/train.py", line 9, in main',
            "    x = torch.load(path)",
            "        ^^^^^^^^^^^^^^^^",
            *LIBRARY,
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.pt'",
        ]
    )
    lines = shorten_user_traceback(text)
    assert lines[:4] == (
        "…",
        '  File "/x/outputs/a/runs/00000/work/train.py", line 9, in main',
        "    x = torch.load(path)",
        "        ^^^^^^^^^^^^^^^^",
    )
    assert lines[-1].startswith("FileNotFoundError")
    assert len(lines) == 17
