"""What is read from squeue, sacct and scontrol, on output recorded from real releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpckit.model.run import Observation
from hpckit.model.states import BaseState
from hpckit.slurm.parse import (
    parse_draining_nodes,
    parse_exit_code,
    parse_job_ids,
    parse_sacct,
    parse_slurm_time,
    parse_squeue,
)

DATA = Path(__file__).parents[1] / "data"
RELEASES = sorted(path.parent.name for path in DATA.glob("*/jobs.json"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)

Reader = Callable[[str, datetime], Iterable[Observation]]
LISTINGS: list[tuple[str, Reader]] = [
    ("squeue", parse_squeue),
    ("squeue_ranges", parse_squeue),
    ("sacct", parse_sacct),
]


def read(release: str, listing: str, reader: Reader) -> dict[str, Observation]:
    """Return what was recorded, by the names tests/data/record.py gave the jobs."""
    jobs = json.loads((DATA / release / "jobs.json").read_text())
    names = {number: name for name, number in jobs.items()}
    text = (DATA / release / f"{listing}.txt").read_text()
    found = {}
    for one in reader(text, NOW):
        main, underscore, index = one.job.partition("_")
        found[f"{names[main]}{underscore}{index}"] = one
    return found


@pytest.mark.parametrize(("listing", "reader"), LISTINGS)
@pytest.mark.parametrize("release", RELEASES)
def test_listing_tells_every_kind_of_end(release: str, listing: str, reader: Reader) -> None:
    """State and exit code of each kind of end are read alike, whatever the release prints."""
    found = read(release, listing, reader)
    ends = {name: (found[name].state.base, found[name].exit_code) for name in found}
    assert ends["completed"] == (BaseState.completed, 0)
    assert ends["failed"] == (BaseState.failed, 3)
    assert ends["killed"] == (BaseState.failed, 137)
    assert ends["cancelled_running"][0] is BaseState.cancelled
    assert ends["cancelled_pending"] == (BaseState.cancelled, None)
    assert ends["running"] == (BaseState.running, None)
    assert ends["held"] == ends["requeued"] == (BaseState.pending, None)
    assert found["failed"].nodes == "n[1-2]"
    assert found["held"].nodes == ""


@pytest.mark.parametrize(("listing", "reader"), LISTINGS)
@pytest.mark.parametrize("release", RELEASES)
def test_listing_expands_waiting_elements(release: str, listing: str, reader: Reader) -> None:
    """The waiting elements of an array, printed as one range, are one observation each."""
    found = read(release, listing, reader)
    states = {index: found[f"array_{index}"].state.base for index in range(9)}
    ended, running = {0, 1}, {2, 3}
    assert {index for index in states if states[index] is BaseState.completed} == ended
    assert {index for index in states if states[index] is BaseState.running} == running
    assert all(states[index] is BaseState.pending for index in range(4, 9))


@pytest.mark.parametrize("listing", ["squeue", "squeue_ranges"])
@pytest.mark.parametrize("release", RELEASES)
def test_squeue_tells_restarts(release: str, listing: str) -> None:
    """A requeued job shows that it was started before."""
    found = read(release, listing, parse_squeue)
    assert (found["requeued"].restarts, found["completed"].restarts) == (1, 0)


def test_listing_says_why_a_job_never_began() -> None:
    """Where slurmd could not open the log, the reason says so, in both listings (22.05)."""
    for listing, reader in LISTINGS:
        assert "could not open the log" in read("22.05", listing, reader)["log_not_opened"].reason


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("7", ("7",)),
        ("7_3", ("7_3",)),
        ("7_[0-2,5%4]", ("7_0", "7_1", "7_2", "7_5")),
        ("7_[9]", ("7_9",)),
        ("7.batch", ()),
        ("7+0", ()),
        ("7_[0-2,...]", ("7_0", "7_1", "7_2", "7_[...]")),
        ("7_[0-2,5...%4]", ("7_0", "7_1", "7_2", "7_[...]")),
        ("7_[0...]", ("7_[...]",)),
        ("7_[4-12:4%1]", ("7_4", "7_8", "7_12")),
        ("7_[4-22:18]", ("7_4", "7_22")),
        ("7_[5-2]", ()),
        ("7_[1-5:0]", ()),
        ("", ()),
    ],
)
def test_job_ids_are_those_meant(text: str, jobs: tuple[str, ...]) -> None:
    """Ranges are expanded as far as they go; steps, heterogeneous parts, nonsense mean no job."""
    assert parse_job_ids(text) == jobs


@pytest.mark.parametrize(
    ("text", "code"),
    [("0:0", 0), ("3:0", 3), ("0:9", 137), ("768", 3), ("9", 137), ("0", 0), ("", None), ("x", None)],
)
def test_exit_code_is_what_a_shell_reports(text: str, code: int | None) -> None:
    """Both ways Slurm writes an exit code become one number, 128 + n for signal n."""
    assert parse_exit_code(text) == code


@pytest.mark.parametrize("recorded", sorted(DATA.glob("*/nodes.txt")), ids=lambda path: path.parent.name)
def test_draining_nodes_are_found_with_their_reason(recorded: Path) -> None:
    """Drained or expected to fail, busy or not; maintenance and a reservation are no drain."""
    assert parse_draining_nodes(recorded.read_text()) == {
        "n1": "fan 3 State=IDLE Reason=old",
        "n2": "NHC: GPU 3 has fallen off the bus",
        "n3": "memory",
    }


@pytest.mark.parametrize(
    ("state", "drains"),
    [
        ("ALLOCATED+DRAIN", True),
        ("MIXED*+DRAIN", True),
        ("MIXED+DRAIN+NOT_RESPONDING", True),
        ("ALLOCATED+DRAIN+REBOOT_REQUESTED", True),
        ("IDLE+DRAIN+MAINTENANCE+RESERVED", True),
        ("DOWN*+DRAIN", True),
        ("draining@", True),
        ("drained*", True),
        ("failing", True),
        ("mixed*", False),
        ("ALLOCATED+MAINTENANCE+RESERVED", False),
        ("MIXED+REBOOT_REQUESTED", False),
        ("MIXED+PLANNED", False),
        ("DOWN+NOT_RESPONDING", False),
        ("IDLE+POWERED_DOWN", False),
    ],
)
def test_draining_is_told_from_other_states(state: str, drains: bool) -> None:  # noqa: FBT001
    """Whatever other flags and suffixes a state has, in the words of scontrol and of sinfo."""
    found = parse_draining_nodes(f"NodeName=a-1 Arch=x86_64 State={state} ThreadsPerCore=1 Comment=DRAIN")
    assert found == ({"a-1": ""} if drains else {})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Reason=Prolog error: 571 [root@2023-12-24T06:51:08] ReservationName=x", "Prolog error: 571"),
        ("Reason=see [ticket 7] [a.b@2023-12-24T06:51:08]", "see [ticket 7]"),
        ("Reason=nobody signed", "nobody signed"),
        ("Reason=none [x@Unknown]", "none"),
    ],
)
def test_draining_reason_is_the_administrators_own_words(said: str, reason: str) -> None:
    """Who said it and when is no part of it, nor what stands behind."""
    assert parse_draining_nodes(f"NodeName=n1 OS=Linux 6 #1 State=IDLE+DRAIN {said}") == {"n1": reason}


def test_listing_survives_nonsense() -> None:
    """A line of another shape is passed over, not an error."""
    assert list(parse_squeue("\nslurm is tired\n|||\n", NOW)) == []


@pytest.mark.parametrize("start", ["2026-01-02T10:00:00", "N/A", ""])
def test_squeue_tells_when_a_waiting_job_is_expected_to_start(start: str) -> None:
    """By the same question as its state; that of a job that runs is when it started."""
    text = f"7|PENDING||0|0|Resources|{start}|\n8|RUNNING|n1|0|0|None|{start}|"
    waiting, running = parse_squeue(text, NOW)
    assert waiting.expected_start == parse_slurm_time(start)
    assert running.expected_start is None
