"""Layers of a unit that the plan leaves out: they train as in one process, or are named."""

from __future__ import annotations

from typing import Any

import pytest

RIGHT = ("gate", "gate in sequence", "adapter in columns", "adapter of the input", "scale")
WHOLE_ONLY = ("buffer", "mask", "waves", "padding", "pooled", "written", "shifted")
WHOLE = {"sequence": False}
NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "gate of heads": ({}, "the plan leaves out blocks.0.gate"),
    "adapter": ({}, "the plan leaves out blocks.0.adapter.narrow, blocks.0.adapter.wide"),
    "norm of heads": ({}, "blocks.0.head_norm.weight"),
    "norm of heads in sequence": ({}, "the plan has blocks.0.head_norm in sequence for heads"),
    "temperature": ({}, "the plan leaves out blocks.0.temperature"),
    "scale": (WHOLE, "the plan leaves out blocks.0.scale"),
    **dict.fromkeys(WHOLE_ONLY[:5], ({}, "activations that are cut along the sequence")),
    **dict.fromkeys(WHOLE_ONLY[5:], ({}, "writes in place into some positions of a sequence")),
}


@pytest.fixture(scope="module", name="found")
def found_fixture(in_world: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train a step of all these models, in parts and by replicas; return what a rank found."""
    right = {f"{way} {settings}": (way, settings) for way in RIGHT for settings in ({}, WHOLE)}
    del right[f"scale {WHOLE}"]  # is refused
    right |= {f"{way} {WHOLE}": (way, WHOLE) for way in WHOLE_ONLY}
    wrong = {f"{way} refused": (way, settings) for way, (settings, _) in NAMED.items()}
    cases = {name: {"way": way, "parallel": settings} for name, (way, settings) in (right | wrong).items()}
    folder = tmp_path_factory.mktemp("unplanned")
    return in_world(folder, cases, ranks=2, program="unplanned_program.py")[0]


@pytest.mark.training
def test_layer_that_the_plan_leaves_out_trains_as_in_one_process(found: Any) -> None:
    """A gate, an adapter, a parameter of the block; plain tensors if activations are whole."""
    far = {name: one.get("far") for name, one in found.items() if not name.endswith("refused")}
    assert len(far) == 2 * len(RIGHT) - 1 + len(WHOLE_ONLY)
    assert all(one is not None and one < 1e-12 for one in far.values()), found


@pytest.mark.training
@pytest.mark.parametrize("way", NAMED)
def test_layer_that_cannot_be_computed_in_parts_is_named(found: Any, way: str) -> None:
    """One error with the layer's name and what to do, not torch's words alone."""
    one = found[f"{way} refused"]
    assert one.get("error") == "RunError", one
    assert NAMED[way][1] in one["message"]
    wanted = "parallel.sequence=false" if way in WHOLE_ONLY else "another layout"
    assert wanted in one["hint"]
