"""Objects of the user's own with sharded tensors, such as a moving average, come back sharded."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.training

CUT = ["fsdp", "tensor"]


def test_own_average_comes_back_in_any_layout(world: Any) -> None:
    """Its tensors are cut like those that it has now."""
    ways = ["assigned", "copied"]
    orders = {"program": "own_objects", "ways": ways, "from": CUT}
    for seen in world(2, to=[*CUT, "ddp"], **orders):
        assert len(seen["wrong"]) == 12
        assert not any(seen["wrong"].values()), seen
    for seen in world(1, to=["alone"], save=False, **orders):
        assert len(seen["wrong"]) == 4
        assert not any(seen["wrong"].values()), seen


def test_own_average_that_is_made_later_is_cut_like_the_parameters_it_names(world: Any) -> None:
    """A new object has no tensors yet that would tell."""
    orders = {"program": "own_objects", "ways": ["lazy"]}
    for seen in world(2, to=[*CUT, "ddp"], **orders, **{"from": ["fsdp"]}):
        assert len(seen["wrong"]) == 3
        assert not any(seen["wrong"].values()), seen
    for seen in world(2, to=["tensor"], **orders, **{"from": ["tensor"]}):
        assert seen["wrong"] == {"lazy: tensor to tensor": []}
    for seen in world(1, to=["alone"], save=False, **orders, **{"from": CUT}):
        assert len(seen["wrong"]) == 2
        assert not any(seen["wrong"].values()), seen


@pytest.mark.parametrize("layout", CUT)
def test_own_tensors_without_names_come_back_in_their_layout(world: Any, layout: str) -> None:
    """A list of averages, and a tensor that no parameter is like, which is on the same ranks."""
    orders = {"program": "own_objects", "ways": ["list", "other"], "from": [layout]}
    for seen in world(2, to=[layout], **orders):
        assert seen["wrong"] == {f"{way}: {layout} to {layout}": [] for way in orders["ways"]}


@pytest.mark.parametrize(
    ("way", "to", "words"),
    [
        ("list", "tensor", "average/shadow/0 was sharded over ranks when the checkpoint of step 1"),
        ("other", "tensor", "average/shadow/odd was sharded over ranks"),
        ("partial", "fsdp", "is a DTensor whose parts are still to be summed"),
    ],
)
def test_own_tensors_that_nothing_places_are_refused(world: Any, way: str, to: str, words: str) -> None:
    """They would come back whole on every rank, or as the part of one."""
    orders = {"program": "own_objects", "ways": [way], "from": ["fsdp"], "to": [to]}
    for seen in world(2, **orders):
        assert seen["error"] == "StateError"
        assert words in seen["message"]
        assert ".full_tensor()" in seen["hint"]
