"""`hpckit bench comm` over the nodes of a real Slurm, one of whose links is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from integration.project import Project
from tiers import thorough

pytestmark = pytest.mark.slurm

WORDS = ("bench", "comm", "cluster=sandbox", "resources.nodes=4", "resources.tasks_per_node=1")
SMALL = ("--sizes", "64KiB:1MiB", "--ops", "all_reduce,point_to_point", "--time-s", "5")


@pytest.mark.main
@thorough
@pytest.mark.parametrize("how", ["pairs", "bisect"])
def test_bench_comm_names_the_node_with_a_slow_link(sandbox: Any, project: Project, how: str) -> None:
    """Four nodes measure each other; the one whose link was slowed down is named, and no other."""
    bad = sandbox.nodes[1]
    sandbox.act("slow-link", bad)
    try:
        done = project.hpckit(*WORDS, *SMALL, "--find-slow", how, "--json")
    finally:
        sandbox.act("heal-node", bad)
    said = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert said["slow_nodes"] == [bad]
    assert said["slow_links"] == []
    (found,) = (one for one in said["findings"] if one["level"] == "error")
    assert f"resources.exclude={bad}" in found["hint"]
    assert said["shape"]["nodes"] == 4
    assert [one for one in project.outputs.iterdir() if not one.name.startswith(".")] == []
