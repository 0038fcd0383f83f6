"""How words of scontrol, sinfo and sacctmgr are read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hpckit.model.cluster.site import parse_gres
from hpckit.model.moment import parse_slurm_duration
from hpckit.slurm.site_parse import (
    parse_accounts,
    parse_partitions,
    parse_qos,
    parse_site_settings,
    parse_user_associations,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", {}),
        ("gpu:4", {"gpu": 4}),
        ("gpu", {"gpu": 1}),
        ("gpu:a100:4(S:0-1)", {"gpu": 4, "gpu:a100": 4}),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:0),mps:400", {"gpu": 6, "gpu:a100": 4, "gpu:v100": 2, "mps": 400}),
        ("gpu:nvidia_h100_80gb_hbm3:8", {"gpu": 8, "gpu:nvidia_h100_80gb_hbm3": 8}),
        ("gpu:1g.10gb:7", {"gpu": 7, "gpu:1g.10gb": 7}),
    ],
)
def test_gres_are_counted_by_name_and_by_type(text: str, expected: dict[str, int]) -> None:
    """Types add up to their name, sockets do not matter."""
    assert parse_gres(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7-00:00:00", timedelta(days=7)),
        ("00:30:00", timedelta(minutes=30)),
        ("UNLIMITED", None),
        ("", None),
        ("30:00", timedelta(minutes=30)),
    ],
)
def test_durations_are_read_as_slurm_writes_them(text: str, expected: timedelta | None) -> None:
    """Days, hours, minutes and seconds; no limit is none."""
    assert parse_slurm_duration(text) == expected


def test_array_limits_come_from_the_scheduler_parameters_too() -> None:
    """max_array_tasks stands among many others."""
    said = parse_site_settings(
        "MaxArraySize            = 0\nSchedulerParameters     = bf_x=1,max_array_tasks=250,y\n"
        "AccountingStorageType   = (null)\n"
    )
    assert (said.array_index, said.array_tasks, said.accounting) == (0, 250, False)


def test_partitions_name_those_they_allow_and_deny() -> None:
    """Lists of accounts and QOS, and the partition's own QOS, are read."""
    said = parse_partitions(
        "PartitionName=gpu AllowAccounts=a,b DenyQos=slow Default=NO QoS=part_gpu MaxNodes=2 "
        "MaxTime=UNLIMITED State=DRAIN TotalNodes=9\n"
    )["gpu"]
    assert said.allowed_accounts == frozenset({"a", "b"})
    assert (said.allowed_qos, said.denied_qos) == (None, frozenset({"slow"}))
    assert (said.qos, said.max_nodes, said.max_time, said.state) == ("part_gpu", 2, None, "DRAIN")


def test_only_this_cluster_counts() -> None:
    """One database serves several clusters; their associations are told apart."""
    default, found = parse_user_associations("a|here|a||normal||5|\na|there|b||normal||6|\n", "here")
    assert default == "a"
    assert [one.account for one in found] == ["a"]
    assert list(parse_accounts("here|a|root|1\nthere|b|root|2\n", "here")) == ["a"]


def test_lines_that_cannot_be_read_are_left_out() -> None:
    """What another release adds in front or between does not matter."""
    assert parse_qos("a warning\nnormal|||||\n").keys() == {"normal"}
