"""Promises of splitting many runs into the arrays that a cluster takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.search import Sweep
from hpckit.planning.jobs.shared_jobs import BACKLOG_JOBS, find_max_concurrent_runs, split_runs_into_arrays

BOUND = st.none() | st.integers(1, 300)


@given(count=st.integers(1, 500), index=BOUND, tasks=BOUND, queued=BOUND)
def test_chunks_keep_every_run_once_and_within_the_limits(
    count: int, index: int | None, tasks: int | None, queued: int | None
) -> None:
    """In order, none lost, none twice; and two fit into the queue where not all do."""
    limits = SubmitLimits(array_index=index, array_tasks=tasks, queued=queued)
    parts = split_runs_into_arrays(range(count), limits)
    assert [run for part in parts for run in part] == list(range(count))
    largest = max(map(len, parts))
    assert all(largest <= bound for bound in (index, tasks) if bound is not None)
    if queued is not None and queued > 2 and len(parts) > 1 and count > queued - BACKLOG_JOBS:
        assert 2 * largest + BACKLOG_JOBS <= queued


def test_chunks_are_as_few_as_can_be() -> None:
    """Without limits there is one array; MaxArraySize caps the index, so that it is the size."""
    assert split_runs_into_arrays(range(5000), NO_LIMITS) == (tuple(range(5000)),)
    sizes = [len(part) for part in split_runs_into_arrays(range(2100), SubmitLimits(array_index=1001))]
    assert sizes == [1001, 1001, 98]


def test_throttle_counts_runs_and_their_gpus() -> None:
    """The narrower bound holds, for runs of this size."""
    four = Resources(nodes=2, gpus_per_node=2)
    assert find_max_concurrent_runs(LaunchConfig()) is None
    assert find_max_concurrent_runs(LaunchConfig(sweep=Sweep(max_concurrent=5))) == 5
    assert find_max_concurrent_runs(LaunchConfig(sweep=Sweep(max_gpus=9), resources=four)) == 2
    bounds = Sweep(max_concurrent=1, max_gpus=9)
    assert find_max_concurrent_runs(LaunchConfig(sweep=bounds, resources=four)) == 1
    with pytest.raises(ConfigError, match=r"sweep\.max_gpus is 3, and one run asks for 4"):
        find_max_concurrent_runs(LaunchConfig(sweep=Sweep(max_gpus=3), resources=four))
