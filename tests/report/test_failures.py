"""Promises of hpckit.report.failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hpckit.model.failure import Cause, Failure
from hpckit.model.node_setup import ContainerRuntime, FrozenContainer
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RunState, parse_slurm_state
from hpckit.report.failures import (
    failure_group_to_json,
    format_failure_groups,
    format_index_ranges,
    format_short_failure_lines,
    group_failures,
)
from hpckit.report.rows import RunRow, build_run_row

BOOM = Failure(
    cause=Cause.exception,
    message="ValueError: loss 3",
    rank=1,
    node="n2",
    step=7,
    traceback='Traceback:\n  File "/home/ann/train.py", line 5, in f\nValueError: loss 3\n',
    signature="exception-1",
)
GONE = Failure(cause=Cause.exit_code, message="ended with exit code 7", signature="exit_code-7")


UNBORN = "Slurm says FAILED, exit code 69: the run ended before its supervisor started: "


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("no module cuda/12 on n1", "cluster.modules=[NAME,…]"),
        ("/usr/bin/python3: No module named hpckit", "cluster.python=/path/to/python"),
        ("cluster.setup ended on n1 with exit code 1 at: false", "cluster.setup=[LINE,…]"),
    ],
)
def test_job_that_cannot_begin_is_not_tried_again_as_it_was(said: str, key: str) -> None:
    """The advice has the key that has to change; `resume` cannot change it."""
    unborn = Failure(cause=Cause.scheduler, message=UNBORN + said)
    (text, again) = format_failure_groups(rows(unborn))
    assert f"it fails the same way again until {key.partition('=')[0]} changes" in text
    assert again == f"  try again: hpckit rerun demo.0 {key} (today's code)"
    mixed = "\n".join(format_failure_groups(rows(unborn, BOOM)))
    assert "hpckit rerun demo --failed (today's code)" in mixed
    assert "hpckit resume" in mixed


def views(*failures: Failure | None, state: RunState = RunState.failed) -> Sequence[RunView]:
    """Return a run for each failure; None has completed."""
    return [
        RunView(
            record=RunRecord(
                id=f"demo.{index}",
                index=index,
                overrides=(),
                folder="/x",
                state=RunState.completed if failure is None else state,
                failure=failure,
            )
        )
        for index, failure in enumerate(failures)
    ]


def rows(*failures: Failure | None, state: RunState = RunState.failed) -> Sequence[RunRow]:
    """Return the row of a run for each failure; None has completed."""
    return [build_run_row(view) for view in views(*failures, state=state)]


@pytest.mark.parametrize(("place", "hints"), [("/out/demo/code/logs", 1), ("/etc/x", 0)])
def test_program_that_may_not_write_next_to_its_code_is_told_where(place: str, hints: int) -> None:
    """The frozen code is read-only; another file that may not be written has no such hint."""
    denied = replace(BOOM, message=f"PermissionError: [Errno 13] Permission denied: '{place}'")
    assert "\n".join(format_failure_groups(rows(denied))).count("below $HPCKIT_RUN_DIR") == hints


def test_script_that_torch_aborts_at_its_end_is_told_of_the_process_group() -> None:
    """Torch 2.13 on gloo says `terminate called without an active exception`."""
    aborted = replace(GONE, cause=Cause.crash, message="rank 1 was killed by SIGABRT")
    assert "lacks dist.destroy_process_group()" in "\n".join(format_failure_groups(rows(aborted)))


def test_process_of_mpi_that_finds_no_launcher_is_told_of_one() -> None:
    """The last line that Open MPI 4 prints then."""
    line = "[n1:02095] Local abort before MPI_INIT completed completed successfully, but am not"
    said = "\n".join(format_failure_groups(rows(replace(GONE, message=f"exit code 1\n{line}"))))
    assert "mpirun -np 1 in front" in said


def test_runs_that_failed_alike_are_one_entry_with_one_traceback() -> None:
    """Largest first, with which runs, the cause, and the first of them as an example."""
    other = replace(BOOM, message="ValueError: loss 9")
    text = "\n".join(format_failure_groups(rows(GONE, BOOM, BOOM, None, other)))
    assert text.count("Traceback:") == 1
    assert "3 runs failed (1-2, 4), with similar messages: exception: ValueError: loss 3\n" in text
    assert "  for example run 1 (rank 1 on n2 at step 7)\n    Traceback:" in text
    assert text.index("3 runs failed") < text.index("demo.0 failed: exit_code: ended with")
    assert "hpckit resume demo --failed (the frozen code)" in text


def test_one_failed_run_is_named_with_what_to_do() -> None:
    """Nothing is said of groups where there is one run."""
    text = "\n".join(format_failure_groups(rows(None, BOOM)))
    assert "demo.1 failed: exception (rank 1 on n2 at step 7): ValueError: loss 3" in text
    assert "hpckit rerun demo.1 (today's code)" in text
    assert "hpckit resume demo.1 (the frozen code)" in text


def test_many_ways_to_fail_are_counted() -> None:
    """Beyond a few, a text names how many runs are left and where all of them are."""
    some = [replace(GONE, signature=f"exit_code-{code}") for code in range(8)]
    text = "\n".join(format_failure_groups(rows(*some)))
    assert text.count("whole log:") == 5
    assert "… and 3 runs with 3 other failures" in text


def test_failures_without_a_signature_are_grouped_by_their_words() -> None:
    """What Slurm alone knows of has none."""
    lost = Failure(cause=Cause.launcher_lost, message="its supervisor died")
    (group,) = group_failures(rows(lost, lost, state=RunState.interrupted))
    assert failure_group_to_json(group) == {
        "signature": "",
        "cause": "launcher_lost",
        "message": "its supervisor died",
        "count": 2,
        "runs": [0, 1],
        "example": "demo.0",
    }


def test_what_was_interrupted_goes_on_and_is_not_tried_again() -> None:
    """Only a run that failed by itself may need other code; the others are resumed."""
    text = "\n".join(format_failure_groups(rows(BOOM, BOOM, state=RunState.interrupted)))
    assert "2 runs interrupted (0-1): exception" in text
    assert "try again" not in text
    assert "continue: hpckit resume demo (`hpckit watch`" in text


def test_resume_is_not_offered_where_it_refuses() -> None:
    """While Slurm may start a run again by itself, and where the Python is gone: that is said."""
    one, other = views(BOOM, BOOM, state=RunState.interrupted)
    seen = Observation(
        job="7", state=parse_slurm_state("COMPLETING"), seen_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    first, waits = build_run_row(one), build_run_row(replace(other, observation=seen, asked=True))
    text = "\n".join(format_failure_groups([waits]))
    assert "not resumed (1): it continues by itself, or can be resumed once Slurm" in text
    assert "hpckit resume" not in text
    text = "\n".join(format_failure_groups([first, waits]))
    assert "continue: hpckit resume demo.0" in text
    assert "not resumed (1): " in text
    for count in (1, 2):
        failed = [replace(row, refusal="its Python is gone") for row in rows(*[BOOM] * count)]
        text = "\n".join(format_failure_groups(failed))
        assert "try again: hpckit rerun" in text
        assert "its Python is gone" in text
        assert "hpckit resume" not in text


def test_who_had_too_little_time_or_memory_reads_how_to_get_more() -> None:
    """On Slurm; where nothing reads the keys, nothing is said of them."""
    late = Failure(cause=Cause.time_limit, message="the time limit was about to end the job")
    (row,) = rows(late, state=RunState.interrupted)
    word = "hpckit resume demo.0 resources.timeout_min=MINUTES (from step 40)"
    assert word in "\n".join(format_failure_groups([replace(row, job="7", resume="from step 40")]))
    assert "timeout_min" not in "\n".join(format_failure_groups([row]))
    full = [replace(row, job="7") for row in rows(*[Failure(cause=Cause.host_oom, message="killed")] * 2)]
    word = "hpckit resume demo --cause host_oom resources.mem_gb=GIGABYTES"
    assert word in "\n".join(format_failure_groups(full))


def test_short_lines_fit_a_live_view() -> None:
    """A line for each of three groups, none over 80 columns or broken, and how many are left."""
    long = replace(BOOM, message="words\n" * 99)
    some = [replace(long, signature=str(number)) for number in range(5)]
    lines = format_short_failure_lines(rows(*some))
    assert len(lines) == 4
    assert lines[0].startswith("1 run failed (0): exception: words words")
    assert all(len(line) < 80 and "\n" not in line for line in lines)
    assert lines[-1] == "… and 2 other failures"
    assert format_short_failure_lines(rows(None)) == ()


def test_ranges_of_very_many_runs_are_cut() -> None:
    """Every second run of a thousand is not listed."""
    assert format_index_ranges([3, 4, 5, 9]) == "3-5, 9"
    assert format_index_ranges(range(0, 1000, 2)).endswith("20, 22, …")


@pytest.mark.parametrize(("path", "hinted"), [("data/x.pt", True), ("/data/x.pt", False)])
def test_failures_say_where_a_relative_path_is_looked_for(path: str, hinted: bool) -> None:  # noqa: FBT001  # parametrized
    """The first failure of many a project: its data are not in the run's folder."""
    message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    lost = Failure(cause=Cause.exception, message=message, signature="a")
    text = "\n".join(format_failure_groups(rows(lost)))
    assert ("runtime.cwd=project" in text) is hinted
    followed = [replace(row, overrides=("runtime.cwd=project",)) for row in rows(lost)]
    assert "runtime.cwd" not in "\n".join(format_failure_groups(followed))
    beside = replace(lost, message=message.replace(path, f"/out/demo/code/{path.strip('/')}"))
    text = "\n".join(format_failure_groups(rows(beside)))
    assert "data/x.pt is looked for in the frozen code" in text
    assert "git add -f" in text


def test_failures_say_where_a_module_is_looked_for() -> None:
    """One that git ignores is not there, however often it is tried again."""
    message = "ModuleNotFoundError: No module named 'helper.deep'"
    lost = Failure(cause=Cause.exception, message=message, signature="a")
    text = "\n".join(format_failure_groups(rows(lost)))
    assert "  helper is looked for in the frozen code, which has what git does not ignore" in text
    assert "cluster.python=/path/to/python" in text, "a login node's may lack torch"
    unfrozen = [replace(row, overrides=("code.snapshot=false",)) for row in rows(lost)]
    assert "git add" not in "\n".join(format_failure_groups(unfrozen))
    image = FrozenContainer(
        runtime=ContainerRuntime.apptainer,
        image="a.sif",
        digest="sha256:1",
        platform="linux/amd64",
        file="/a.sif",
        bytes=1,
        stamp=(),
    )
    text = "\n".join(format_failure_groups([replace(row, container=image) for row in rows(lost)]))
    assert "in the image: git add -f your own, take one that has it" in text
    assert "or name its Python: container.python" in text
    assert "cluster.python" not in text
    lost = replace(lost, message="FileNotFoundError: [Errno 2] No such file or directory: '/data/x'")
    text = "\n".join(format_failure_groups([replace(row, container=image) for row in rows(lost)]))
    assert "container.mounts=[SRC[:DST[:ro]]]" in text
    assert "container.mounts" not in "\n".join(format_failure_groups(rows(lost)))


def test_data_that_changed_is_not_tried_again_as_it_was_frozen() -> None:
    """A resume would be refused for the same reason."""
    refused = Failure(cause=Cause.data_refused, message="/x has changed since the launch", signature="a")
    text = "\n".join(format_failure_groups(rows(refused)))
    assert "hpckit rerun" in text
    assert "hpckit resume" not in text


def test_gpu_memory_is_named_where_the_message_is_cut_before_it() -> None:
    """And not twice where it is not."""
    words = "GPU memory: of 80.0 GB, this rank had allocated 70.0 GB"
    for middle in ("", "x" * 2000):
        full = replace(BOOM, cause=Cause.cuda_oom, message=f"OutOfMemoryError: no\n{middle}\n{words}")
        text = "\n".join(format_failure_groups(rows(full)))
        assert text.count(words) == 1
        assert f"\n  {words}\n" in text


def test_further_lines_of_a_message_are_indented() -> None:
    """The advice of an error stands below it, apart from the next run."""
    failed = replace(BOOM, message="UsageError: no share\ntake run.share(8)", traceback=None)
    (text, *_) = format_failure_groups(rows(failed))
    assert "UsageError: no share\n  take run.share(8)\n  whole log:" in text
    other = replace(failed, message="UsageError: no share\ntake run.share(9)")
    (text, *_) = format_failure_groups(rows(failed, other))
    assert "similar messages: exception: UsageError: no share\n  take run.share(8)\n  for" in text
