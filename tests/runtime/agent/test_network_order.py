"""Promises of a round's nodes with real agents, each of which knows its own place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.model.events import AgentJoined, RoundStarted
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import read_events

SWITCHES = {"n1": ["root", "b"], "n2": ["root", "a"], "n3": ["root", "b"], "n4": ["root", "a"]}


@pytest.mark.training
@pytest.mark.parametrize(
    ("switches", "order"),
    [(SWITCHES, ("n2", "n4", "n1", "n3")), pytest.param(None, ("n1", "n2", "n3", "n4"), marks=thorough)],
    ids=["two switches", "no topology"],
)
def test_ranks_are_numbered_along_the_switches(
    slurm_shell: Any, fake_slurm: Any, switches: Any, order: tuple[str, ...]
) -> None:
    """Agents tell their supervisor where they are; the round's event has the order of its nodes."""
    if switches is not None:
        fake_slurm.folder.mkdir(parents=True, exist_ok=True)
        (fake_slurm.folder / "topology.json").write_text(json.dumps(switches))
    tell = "command=[sh,-c,'echo $SLURMD_NODENAME > $HPCKIT_RUN_DIR/rank$RANK']"
    words = ("experiment=command", tell, "resources.nodes=4", "resources.tasks_per_node=1")
    said = slurm_shell("launch", *words, "--wait", "--json")
    assert said.code == 0, said.err
    paths = LaunchPaths(Path(json.loads(said.out)["dir"])).run(0)
    history = list(read_events(paths.attempt(1).events))
    (started,) = (one for one in history if isinstance(one, RoundStarted))
    assert started.nodes == order
    told = {one.node: one.switches for one in history if isinstance(one, AgentJoined)}
    assert told == {node: tuple((switches or {}).get(node, ())) for node in SWITCHES}
    ranks = [(paths.folder / f"rank{rank}").read_text().strip() for rank in range(4)]
    assert tuple(ranks) == order
