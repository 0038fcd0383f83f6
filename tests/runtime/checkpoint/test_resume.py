"""Resuming: what comes back is what was there, bit for bit, in any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.training


def _losses(parts: list[dict[str, Any]]) -> dict[str, float]:
    return {step: loss for part in parts for step, loss in part["losses"].items()}


WAITS = [pytest.param(True, id="synchronous", marks=thorough), pytest.param(False, id="background")]


@pytest.mark.parametrize("wait", WAITS)
def test_resume_of_two_ranks_is_bitwise(world: Any, folder: Path, *, wait: bool) -> None:
    """Twenty steps at once, and ten, a save, new processes and ten more, end in the same bits."""
    whole = world(2, until=20, folder=str(folder.with_name("whole")))
    first = world(2, until=10, save_at=[5, 10], wait=wait)
    second = world(2, until=20, epoch=2, seed=99)
    for rank in range(2):
        assert second[rank]["restored"]["step"] == 10
        assert second[rank]["restored"]["samples"] == 240
        assert second[rank]["start"] == first[rank]["digest"]
        assert second[rank]["digest"] == whole[rank]["digest"]
        assert _losses([first[rank], second[rank]]) == _losses([whole[rank]])


def test_resume_fits_any_number_of_ranks(world: Any) -> None:
    """A state saved by one rank goes through two and four ranks and back to one unchanged."""
    ends: list[str] = []
    for number, ranks in enumerate((1, 2, 4, 1), start=1):
        seen = world(ranks, until=3 * number, save_at=[3 * number], epoch=number)
        if ends:
            assert {one["start"] for one in seen} == {ends[-1]}
            assert all(one["restored"]["reseeded"] for one in seen)
            assert all(one["restored"]["samples"] == 24 * 3 * (number - 1) for one in seen)
        (end,) = {one["digest"] for one in seen}
        ends.append(end)
    assert len(set(ends)) == len(ends)


@pytest.mark.parametrize("wait", WAITS)
def test_tensor_cut_over_ranks_comes_back_whole(world: Any, folder: Path, *, wait: bool) -> None:
    """A tensor larger than a share is written in parts and loads whole in any number of ranks."""
    first = world(2, until=2, save_at=[2], all_width=200_000, wait=wait)
    second = world(3, until=2, epoch=2, all_width=200_000)
    third = world(1, until=2, epoch=3, all_width=200_000)
    assert {one["start"] for one in (*second, *third)} == {first[0]["digest"]}
    sizes = [path.stat().st_size for path in folder.glob("step-*/__*_0.distcp")]
    assert len(sizes) == 2
    assert max(sizes) < 1.5 * min(sizes)


def test_poison_on_one_rank_makes_all_fall_back(world: Any) -> None:
    """Where one rank cannot take a state, all ranks go back to the checkpoint before."""
    world(2, until=4, save_at=[2, 4])
    seen = world(2, until=4, epoch=2, poison=4, poison_rank=1)
    for one in seen:
        assert one["restored"]["step"] == 2
        ((name, reason),) = one["restored"]["rejected"]
        assert name.startswith("step-00000004.e1.")
        assert " refused its state in load_state_dict: RuntimeError: this state kills" in reason
        assert reason.endswith("(rank 1)")


def test_unlike_models_are_refused(world: Any) -> None:
    """A model that another rank builds differently is refused on all ranks, not half saved."""
    seen = world(2, until=1, save_at=[1], width=16, ddp=False)
    assert [one["error"] for one in seen] == ["StateError", "StateError"]
    assert "rank 1" in seen[0]["message"]


def test_one_rank_in_a_process_group_saves_what_one_alone_loads(world: Any) -> None:
    """Whether a single rank has a process group makes no difference to its checkpoints."""
    (first,) = world(1, until=2, save_at=[2], group=True)
    (second,) = world(1, until=2, epoch=2)
    assert second["start"] == first["digest"]
    assert not second["restored"]["reseeded"]


def test_sharded_state_comes_back_whole_in_other_worlds(world: Any) -> None:
    """Parameters and optimizer state sharded over two ranks load into three and one unchanged."""
    first = world(2, until=2, save_at=[2], sharded=True, wait=False)
    second = world(3, until=2, epoch=2, sharded=True)
    third = world(1, until=2, epoch=3, sharded=True, group=True)
    assert {one["start"] for one in (*second, *third)} == {first[0]["digest"]}
