"""How long a job has, and why it ends: read from what three releases print, or left open."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hpckit.model.cluster.allocation import AllocationEnding
from hpckit.model.cluster.preemption import PreemptMode
from hpckit.model.failure import Cause
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import JobLimits, LimitsOfJob, ask_job_limits, ask_why_job_ends
from hpckit.slurm.parse import parse_node_names, parse_scontrol_settings, parse_slurm_time

END = datetime(2026, 11, 21, 6, 51, 21, tzinfo=UTC)
AS_OF = datetime.fromisoformat("2026-11-21T06:36:25").astimezone(UTC)
"""The controller's clock, in local time, as it prints it."""

CONFIG = """Configuration data as of 2026-11-21T06:36:25
AccountingStorageBackupHost =
AuthInfo                = socket=/run/munge.socket,cred_expire=5
KillWait                = 5 sec
PreemptMode             = REQUEUE
PreemptParameters       = (null)
PreemptType             = {plugin}
PreemptExemptTime       = 00:00:00
Slurmctld(primary) at ctl is UP
"""
PARTITION = """PartitionName=batch
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=ALL Default=YES QoS=N/A
   DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=10 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-4]
   OverTimeLimit=NONE PreemptMode=CANCEL
   State=UP TotalCPUs=64 TotalNodes=4 SelectTypeParameters=NONE
"""
BY_PARTITION = CONFIG.format(plugin="preempt/partition_prio")
SlurmMaker = Callable[..., SlurmCommands]


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmMaker:
    """Return a maker of a Slurm that prints these texts; what is not given fails."""

    def make(**texts: str) -> SlurmCommands:
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        answers = "\n".join(
            f'*"{pattern}"*) exec cat {tmp_path}/{name} ;;'
            for name, pattern in (
                ("terms", "Format=ReqNodes"),
                ("job", "Format=JobArrayID"),
                ("config", "show config"),
                ("partition", "show partition"),
                ("qos", "show qos"),
            )
        )
        for name in ("squeue", "scontrol", "sacctmgr"):
            lines = f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in\n{answers}\nesac\n'
            (tmp_path / name).write_text(lines)
            (tmp_path / name).chmod(0o755)
        return SlurmCommands(bin_dir=str(tmp_path), environ={"PATH": "/usr/bin:/bin"})

    return make


def left(limits: JobLimits | None) -> float:
    """Return how many seconds are left; about 14.9 minutes in the texts above."""
    assert limits is not None
    assert limits.end_s is not None
    return limits.end_s - time.monotonic()


LEFT = pytest.approx((END - AS_OF).total_seconds(), abs=30)


def test_limits_are_read_from_three_answers(slurm: SlurmMaker, tmp_path: Path) -> None:
    """End, KillWait, grace and the kind of preemption: one question each.

    The time left is by the controller's clock alone, which is years from this machine's.
    """
    terms = f"|batch|{END.timestamp():.0f}|N/A||1|normal|\n"
    commands = slurm(terms=terms, config=BY_PARTITION, partition=PARTITION)
    found = ask_job_limits(commands, "7_3", {})
    assert left(found) == LEFT
    assert replace(found, end_s=None) == JobLimits(
        kill_wait=timedelta(seconds=5), grace=timedelta(seconds=10), preempt_mode=PreemptMode.cancel
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert "--jobs=7_3" in calls[0]


def test_limits_take_the_environments_end(slurm: SlurmMaker, tmp_path: Path) -> None:
    """Where the batch script is told its end and its partition, squeue is not asked."""
    environ = {"SLURM_JOB_END_TIME": f"{END.timestamp():.0f}", "SLURM_JOB_PARTITION": "batch"}
    commands = slurm(config=BY_PARTITION, partition=PARTITION)
    assert left(ask_job_limits(commands, "7", environ)) == LEFT
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_limits_take_the_environments_length_where_the_controller_is_away(slurm: SlurmMaker) -> None:
    """The job began about when its script did, whatever this node's clock says."""
    environ = {"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "1900"}
    assert left(ask_job_limits(slurm(), "7", environ)) == pytest.approx(900, abs=30)


def test_limits_that_were_changed_are_seen(slurm: SlurmMaker, tmp_path: Path) -> None:
    """`scontrol update TimeLimit`: two questions later it is known; no answer is none."""
    terms = f"|batch|{END.timestamp():.0f}|N/A||1|normal|\n"
    commands = slurm(terms=terms, config=BY_PARTITION, partition=PARTITION)
    environ = {"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "1900"}
    asked = LimitsOfJob(commands=commands, job="7", environ=environ)
    asked.ask_limits()
    assert left(asked.ask_limits()) == LEFT
    later = END + timedelta(hours=2)
    (tmp_path / "terms").write_text(f"|batch|{later.timestamp():.0f}|N/A||1|normal|\n")
    (tmp_path / "calls").unlink()
    assert left(asked.ask_limits()) == pytest.approx((later - AS_OF).total_seconds(), abs=30)
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
    (tmp_path / "terms").write_text("|batch|N/A|N/A||1|normal|\n")
    unlimited = asked.ask_limits()
    assert unlimited is not None
    assert unlimited.end_s is None
    (tmp_path / "config").unlink()
    assert asked.ask_limits() is None


def test_limits_fall_back_to_slurms_defaults(slurm: SlurmMaker) -> None:
    """What does not answer leaves the time limit open and KillWait at 30 s; nothing is raised."""
    assert ask_job_limits(slurm(), "7", {}) == JobLimits()
    assert JobLimits().kill_wait == timedelta(seconds=30)


QOS = "normal|cluster|00:00:00\nlow|cancel|00:00:12\nhigh|cluster|00:00:00\n"
"""As sacctmgr of 22.05 prints it."""


@pytest.mark.parametrize(
    ("qos", "answer", "grace_s", "mode"),
    [
        ("low", QOS, 12, PreemptMode.cancel),
        ("normal", QOS, 0, PreemptMode.requeue),
        ("low", "", None, PreemptMode.unknown),
    ],
)
def test_limits_are_the_qoss_where_qos_preempt(
    slurm: SlurmMaker, qos: str, answer: str, grace_s: int | None, mode: PreemptMode
) -> None:
    """With preemption by QOS the grace is the QOS's: a number of the partition's would mislead."""
    config = CONFIG.format(plugin="preempt/qos")
    terms = f"|batch|N/A|N/A||1|{qos}|\n"
    commands = slurm(terms=terms, config=config, partition=PARTITION, qos=answer)
    limits = ask_job_limits(commands, "7", {})
    grace = None if grace_s is None else timedelta(seconds=grace_s)
    assert (limits.grace, limits.preempt_mode) == (grace, mode)


def test_limits_of_a_job_without_a_time_limit_are_open(slurm: SlurmMaker) -> None:
    """UNLIMITED has no end."""
    commands = slurm(terms="|batch|N/A|N/A||1|normal|\n", config=BY_PARTITION, partition=PARTITION)
    assert ask_job_limits(commands, "7", {}).end_s is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OFF", PreemptMode.off),
        ("GANG,SUSPEND", PreemptMode.suspend),
        ("REQUEUE,WITHIN", PreemptMode.requeue),
        ("", PreemptMode.unknown),
        ("PRIORITY", PreemptMode.unknown),
    ],
)
def test_preempt_mode_is_read_among_other_words(text: str, expected: PreemptMode) -> None:
    """The one word that says what becomes of the job counts."""
    assert PreemptMode.parse(text) is expected


@pytest.mark.parametrize("text", ["N/A", "Unknown", "NONE", "UNLIMITED", "", "9" * 30])
def test_moment_of_no_date_is_none(text: str) -> None:
    """Slurm's words for no moment are none, and so is what cannot be read."""
    assert parse_slurm_time(text) is None


def test_moment_is_the_same_in_both_ways_of_writing() -> None:
    """Seconds since 1970 and local time without a zone mean the same moment."""
    local = END.astimezone().replace(tzinfo=None).isoformat()
    assert parse_slurm_time(local) == parse_slurm_time(f"{END.timestamp():.0f}") == END


def test_settings_are_read_from_columns_and_lines() -> None:
    """A name without a value does not swallow the next line; values keep their equals signs."""
    found = parse_scontrol_settings(BY_PARTITION)
    assert found["AccountingStorageBackupHost"] == ""
    assert found["AuthInfo"] == "socket=/run/munge.socket,cred_expire=5"
    assert found["KillWait"] == "5"
    assert parse_node_names(parse_scontrol_settings(PARTITION)["Nodes"]) == ("n1", "n2", "n3", "n4")


PREEMPTED = AllocationEnding(cause=Cause.preempted, restarts=False)
CANCELLED = AllocationEnding(cancelled=True)


@pytest.mark.parametrize(
    ("job", "preempted", "expected"),
    [
        ("7|RUNNING|n1|0|0|None|", "1795243150", PREEMPTED),
        ("7|COMPLETING|n1|1|0|None|", "1795243150", PREEMPTED),
        ("7|COMPLETING|n1|0|0|TimeLimit|", "N/A", AllocationEnding(cause=Cause.time_limit)),
        ("7|COMPLETING|n1|1|0|None|", "N/A", AllocationEnding(cause=Cause.notice)),
        ("7|COMPLETING|n1|0|0|None|", "N/A", CANCELLED),
        ("7|COMPLETING|n1|0|0|NodeDown|", "N/A", AllocationEnding()),
        ("7|RUNNING|n1|0|0|None|", "N/A", AllocationEnding(runs_on=True)),
        ("", "N/A", AllocationEnding()),
    ],
)
def test_ending_is_told_by_restarts_reason_and_moment_of_preemption(
    slurm: SlurmMaker, job: str, preempted: str, expected: AllocationEnding
) -> None:
    """Which signal came does not tell a preemption from a cancel; Slurm's record does."""
    terms = f"|batch|{END.timestamp():.0f}|{preempted}||1|normal|\n"
    assert ask_why_job_ends(slurm(job=f"{job}\n", terms=terms), "7", 0) == expected


@pytest.mark.parametrize(
    ("state", "preempted_s", "expected"),
    [
        ("RUNNING", 10, PREEMPTED),
        ("COMPLETING", 0, PREEMPTED),
        ("COMPLETING", 1, PREEMPTED),
        ("COMPLETING", 2, CANCELLED),
        ("COMPLETING,PREEMPTED", 2, PREEMPTED),
        ("COMPLETING,CANCELLED", 0, CANCELLED),
        ("CANCELLED", 2, CANCELLED),
        ("PREEMPTED", 0, PREEMPTED),
    ],
)
def test_cancel_within_the_grace_is_no_preemption(
    slurm: SlurmMaker, state: str, preempted_s: int, expected: AllocationEnding
) -> None:
    """Slurm moves PreemptTime to the end of a job that it ends itself; a user's scancel does not.

    Recorded with 22.05: scancel 2 s after the grace began, EndTime 11:40:43, PreemptTime 11:40:41;
    at the end of the grace both are 11:41:10.
    """
    at = END - timedelta(seconds=preempted_s)
    terms = f"|batch|{END.timestamp():.0f}|{at.timestamp():.0f}||1|normal|\n"
    assert ask_why_job_ends(slurm(job=f"7|{state}|n1|0|0|None|\n", terms=terms), "7", 0) == expected


@pytest.mark.parametrize(
    ("mode", "requeue", "restarts"),
    [
        (PreemptMode.requeue, "1", True),
        (PreemptMode.requeue, "0", False),
        (PreemptMode.cancel, "1", False),
        (PreemptMode.unknown, "1", False),
    ],
)
def test_ending_says_whether_slurm_starts_the_job_again(
    slurm: SlurmMaker,
    mode: PreemptMode,
    requeue: str,
    restarts: bool,  # noqa: FBT001
) -> None:
    """A job with Requeue=0 is not requeued by a preemption, whatever the site's mode."""
    terms = f"|batch|{END.timestamp():.0f}|1795243150||{requeue}|normal|\n"
    found = ask_why_job_ends(slurm(job="7|RUNNING|n1|0|0|None|\n", terms=terms), "7", 0, mode)
    assert found.restarts is restarts
