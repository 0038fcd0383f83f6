"""Promises of planning.checks about the settings of telemetry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpckit.errors import ConfigError
from hpckit.model.launch import Cluster, LaunchConfig, Resources
from hpckit.model.settings import Observe, Profile, ProfileTool
from hpckit.planning.checks.config import check_settings_are_consistent


def check_observe(observe: Observe, ranks: int = 8) -> None:
    """Check a run with these settings on so many ranks."""
    task = LaunchConfig(entry_point="a:b", cluster=Cluster(gpus_per_node=8), observe=observe)
    check_settings_are_consistent(replace(task, resources=Resources(tasks_per_node=ranks)))


@pytest.mark.parametrize(
    "observe",
    [
        Observe(),
        Observe(interval_s=0),
        Observe(interval_s=0.5, row_s=0.5),
        Observe(max_mb=1),
        Observe(profile=Profile(at_step=0, steps=1, ranks=[7, 0], tool=ProfileTool.nsys)),
    ],
)
def test_sensible_settings_are_taken(observe: Observe) -> None:
    """From every half second to not at all."""
    check_observe(observe)


@pytest.mark.parametrize(
    ("observe", "key"),
    [
        (Observe(interval_s=0.1), "observe.interval_s"),
        (Observe(interval_s=-1), "observe.interval_s"),
        (Observe(row_s=2), "observe.row_s"),
        (Observe(max_mb=0), "observe.max_mb"),
        (Observe(max_mb=float("nan")), "observe.max_mb is nan"),
        (Observe(max_mb=1e300), "observe.max_mb"),
        (Observe(interval_s=float("nan")), "observe.interval_s is nan"),
        (Observe(row_s=float("nan")), "observe.row_s is nan"),
        (Observe(row_s=float("inf")), "observe.row_s is inf"),
        (Observe(row_s=1e300), "observe.row_s is 1e"),
        (Observe(profile=Profile(at_step=-1)), "observe.profile.at_step is -1"),
        (Observe(profile=Profile(steps=0)), "observe.profile.steps is 0"),
        (Observe(profile=Profile(steps=1001)), "observe.profile.steps is 1001"),
        (Observe(profile=Profile(ranks=[])), "observe.profile.ranks"),
        (Observe(profile=Profile(ranks=[-1])), "observe.profile.ranks"),
        (Observe(profile=Profile(ranks=list(range(65)))), "observe.profile.ranks"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(observe: Observe, key: str) -> None:
    """The key, its value and what is allowed are named."""
    with pytest.raises(ConfigError, match=key):
        check_observe(observe)


def test_planned_profile_names_ranks_that_there_are() -> None:
    """A plan, or nsys; the default of a run without either may name any."""
    check_observe(Observe(profile=Profile(at_step=3, ranks=[0, 1])), 2)
    check_observe(Observe(profile=Profile(ranks=[7])), 2)
    for profile in (Profile(at_step=3, ranks=[1, 2]), Profile(tool=ProfileTool.nsys, ranks=[2])):
        with pytest.raises(ConfigError, match="names rank 2; the run has 2, numbered from 0"):
            check_observe(Observe(profile=profile), 2)
