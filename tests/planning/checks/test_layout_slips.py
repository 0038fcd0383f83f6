"""Promises about layouts that are not what their words say: they are warned of, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.model.finding import Finding
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Resources
from hpckit.model.parallel.settings import Parallel
from hpckit.planning.checks.config import check_settings_are_consistent
from hpckit.planning.checks.slips import find_ineffective_overrides, warn_about_sizes_without_ranks
from hpckit.planning.layout import plan_run_layout

FSDP = {"replicate": 1, "shard": "rest"}


def settings(ranks: int = 2, **parallel: Any) -> LaunchConfig:
    """Return a run of some ranks on this machine, with these sizes."""
    return LaunchConfig(
        entry_point="t:main",
        cluster=Cluster(kind=ClusterKind.local),
        resources=Resources(tasks_per_node=ranks),
        parallel=Parallel(**({"replicate": "rest"} | parallel)),
    )


def layout_slips(run: LaunchConfig, words: list[str]) -> list[Finding]:
    """Return the warnings about the layout of a run that these words asked for."""
    return [*find_ineffective_overrides(run, words), *warn_about_sizes_without_ranks(run)]


@pytest.mark.parametrize(
    ("words", "sizes", "said"),
    [
        ("parallel=fsdp parallel.tensor=2", FSDP | {"tensor": 2}, "parallel.shard=rest has no"),
        ("parallel=none parallel.shard=2", {"shard": 2}, "parallel=none comes with sizes"),
        ("parallel=layout", {}, "parallel=layout has no sizes"),
    ],
)
def test_contradictions_are_warned_of(words: str, sizes: dict[str, Any], said: str) -> None:
    """Each is a run that trains, and not as its words say."""
    (found,) = layout_slips(settings(**sizes), words.split())
    assert found.message.startswith(said)
    assert found.hint


@pytest.mark.parametrize(
    ("words", "sizes", "ranks"),
    [
        ("parallel=fsdp", FSDP, 2),
        ("parallel=fsdp", FSDP, 1),
        ("parallel=none", {}, 2),
        ("parallel=layout parallel.shard=2", {"shard": 2}, 2),
        ("", {}, 2),
    ],
)
def test_what_is_meant_is_not_warned_of(words: str, sizes: dict[str, Any], ranks: int) -> None:
    """Nor is a sweep over layouts that is tried on one rank."""
    assert not list(layout_slips(settings(ranks, **sizes), words.split()))


def test_size_that_does_not_divide_is_named_as_it_was_written() -> None:
    """The key that the user wrote comes first, and the number of ranks once."""
    with pytest.raises(ConfigError) as refused:
        plan_run_layout(settings(shard=3))
    words = "parallel.shard=3 does not divide the 2 ranks (1 node x 2) of the run"
    assert refused.value.message.startswith(words)


@pytest.mark.parametrize("ranks", [2000, 10_000_000_000])
def test_more_ranks_than_a_machine_starts_are_refused(ranks: int) -> None:
    """Before anything makes a list of them, or a process for each."""
    with pytest.raises(ConfigError, match="there can be"):
        check_settings_are_consistent(settings(ranks))
