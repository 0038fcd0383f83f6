"""Promises of `parallel.reduce=tree`: the same bits on 8, 4, 3, 2 and 1 ranks. Real gloo worlds."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.training

TREE, FAST = {"reduce": "tree"}, {"reduce": "fast"}
CASES: dict[str, dict[str, Any]] = {
    "tree": {"full": 8, "parallel": TREE},
    "four groups of two": {"full": 4, "parallel": TREE | {"microbatches": 2}},
    "accumulated": {"full": 8, "parallel": TREE, "twice": True},
    "partly used": {"full": 8, "parallel": TREE, "wrong": "partly"},
    "fast": {"full": 8, "parallel": FAST},
}
WORLDS, MORE = (1, 3, 4), (2, 8)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "statistics": ({"full": 2, "parallel": TREE, "wrong": "normed"}, "norm is a BatchNorm1d"),
    "rows": ({"full": 8, "parallel": TREE, "wrong": "other rows", "rows": 24}, "whole groups"),
    "groups": ({"full": 8, "parallel": TREE, "rows": 20}, "20 rows is not 8 equal groups"),
    "more ranks": ({"full": 1, "parallel": TREE}, "there are 2 data ranks"),
    "own backward": ({"full": 2, "parallel": TREE, "wrong": "own backward"}, "summed by run.train_step only"),
}


@pytest.fixture(scope="module", name="found")
def found_fixture(
    tmp_path_factory: pytest.TempPathFactory, in_world: Any, request: pytest.FixtureRequest
) -> dict[int, list[dict[str, Any]]]:
    """Return what each rank found, by the size of its world; more worlds only thoroughly."""
    found = {}
    here = [one for one in request.session.items if one.path == request.path]
    more = MORE if any(one.get_closest_marker("thorough") for one in here) else ()
    for ranks in (*WORLDS, *more):
        cases = {name: case for name, case in CASES.items() if ranks <= case["full"]}
        folder = tmp_path_factory.mktemp(f"tree{ranks}")
        found[ranks] = in_world(folder, cases, ranks=ranks, program="tree_program.py")
    return found


def hashes(found: dict[int, list[dict[str, Any]]], name: str) -> dict[int, str]:
    """Return the hash of the parameters by the size of the world; all ranks have the same."""
    by_size = {}
    for ranks, each in found.items():
        if name in each[0]:
            assert "error" not in each[0][name], each[0][name]
            (by_size[ranks],) = {one[name]["hash"] for one in each}
    return by_size


@pytest.mark.parametrize("name", ["tree", "four groups of two", "accumulated", "partly used"])
def test_number_of_replicas_changes_no_bit(found: dict[int, list[dict[str, Any]]], name: str) -> None:
    """Parameters after five steps of AdamW with clipping, losses and norms; three replicas, too."""
    assert hashes(found, name).keys() >= {*WORLDS}
    assert len(set(hashes(found, name).values())) == 1
    losses = [each[0][name]["losses"] for each in found.values() if name in each[0]]
    assert all(loss == losses[0] for loss in losses)


@thorough
def test_groups_of_microbatches_are_those_of_twice_the_replicas(
    found: dict[int, list[dict[str, Any]]],
) -> None:
    """Trees nest: 4 replicas with 2 microbatches have the bits of 8 replicas."""
    assert hashes(found, "four groups of two")[1] == hashes(found, "tree")[8]


def test_fast_sums_depend_on_the_number_of_replicas(found: dict[int, list[dict[str, Any]]]) -> None:
    """So that the test above can fail; the losses are nearly the same all the same."""
    assert len(set(hashes(found, "fast").values())) > 1
    for each in found.values():
        tree, fast = (
            [float.fromhex(loss) for loss, _ in each[0][name]["losses"]] for name in ("tree", "fast")
        )
        assert tree == pytest.approx(fast, abs=1e-4)


def test_parameters_without_a_gradient_stay_without(found: dict[int, list[dict[str, Any]]]) -> None:
    """What no row of any rank used has none, so that an optimizer passes over it."""
    for ranks in WORLDS:
        assert found[ranks][0]["partly used"]["unused"] == ["module.unused"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_exact_is_refused(in_world: Any, tmp_path: Any, name: str) -> None:
    """Statistics of rows, rows that are no groups, gradients that DDP would sum by itself."""
    case, words = REFUSED[name]
    ranks = 3 if name == "rows" else 2
    for one in in_world(tmp_path, {name: case}, ranks=ranks, program="tree_program.py"):
        assert words in one[name]["message"], one[name]
