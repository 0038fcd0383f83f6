"""Promises of `resources.switches` and `resources.segment`: sbatch takes what passes the check."""

from __future__ import annotations

import pytest

from hpckit.errors import ConfigError
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Resources
from hpckit.planning.checks.config import check_settings_are_consistent


def settings(**resources: object) -> LaunchConfig:
    """Return settings of a run on four nodes of a cluster."""
    return LaunchConfig(
        name="x",
        command="true",
        cluster=Cluster(kind=ClusterKind.slurm),
        resources=Resources(**{"nodes": 4, **resources}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "switches", ["1", "2@60", "1@0:30", "1@1:00:00", "1@1-0", "1@1-02:30", "1@1-02:30:00", None]
)
def test_switches_are_a_count_and_a_wait_as_sbatch_writes_times(switches: str | None) -> None:
    """All forms of time that sbatch's manual has."""
    check_settings_are_consistent(settings(switches=switches))


@pytest.mark.parametrize("switches", ["0", "-1", "one", "1@", "1@soon", "1@1:2:3:4", "@5", "1 --x"])
def test_other_switches_are_refused_by_name(switches: str) -> None:
    """Before the queue, not by it; and nothing slips another option into the script."""
    with pytest.raises(ConfigError, match=r"resources\.switches is '.*'; it must be a count"):
        check_settings_are_consistent(settings(switches=switches))


def test_segment_divides_the_nodes_that_are_asked_for() -> None:
    """Spare nodes count: they are of the same allocation."""
    check_settings_are_consistent(settings(segment=2))
    check_settings_are_consistent(settings(segment=2, spare_nodes=2))
    with pytest.raises(ConfigError, match=r"resources\.segment is 3, .* the 4 nodes"):
        check_settings_are_consistent(settings(segment=3))
    with pytest.raises(ConfigError, match=r"resources\.segment is 2, .* the 5 nodes"):
        check_settings_are_consistent(settings(segment=2, spare_nodes=1))
    with pytest.raises(ConfigError, match=r"resources\.segment is 0"):
        check_settings_are_consistent(settings(segment=0))
