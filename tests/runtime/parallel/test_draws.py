"""Code of the user's that draws numbers trains the same after a restart, and in each layout."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiers import chosen, in_tiers

pytestmark = pytest.mark.training

LAYOUTS: dict[str, dict[str, int]] = {
    "ddp": {"replicate": 2},
    "fsdp": {"shard": 2},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}
SOURCES = ("random", "numpy", "torch")
PLACES = ("unit", "loss", "buffer", "parameter", "init")
USUAL = {
    *(f"{layout} {place} random" for layout, place in product(LAYOUTS, PLACES)),
    *(f"{layout} loss numpy" for layout in LAYOUTS),
    *("pipeline unit numpy recomputed", "fsdp unit random recomputed"),
    *("ddp buffer numpy", "fsdp buffer numpy"),
}


def case(layout: str, place: str, source: str, recompute: str = "none") -> dict[str, Any]:
    """Return a case in which one place draws from one source."""
    settings = {"sequence": False, "recompute": recompute}
    return {"layout": LAYOUTS[layout], place: source, "parallel": settings}


CASES = {
    **{f"{a} {b} {c}": case(a, b, c) for a, b, c in product(LAYOUTS, PLACES, SOURCES)},
    **{f"{a} unit {c} recomputed": case(a, "unit", c, "blocks") for a, c in product(LAYOUTS, SOURCES)},
}
REFUSED = {
    f"{layout} {place} system": case(layout, place, "system")
    for layout, place in product(("fsdp", "tensor", "pipeline"), ("buffer", "parameter", "init"))
    # Ranks of two stages have no tensor in common if each makes its own.
    if (layout, place) != ("pipeline", "init")
}
SENT = {"ddp buffer system": case("ddp", "buffer", "system")}


@pytest.fixture(scope="module", name="world")
def world_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_world: Any
) -> list[dict[str, Any]]:
    """Train all cases that are asked for on two ranks."""
    folder: Path = tmp_path_factory.mktemp("draws")
    plain = {f"{one} plain": case(one, "unit", "none") for one in LAYOUTS}
    cases = chosen(request, {**CASES, **REFUSED, **SENT}) | plain
    ranks: list[dict[str, Any]] = in_world(folder, cases, ranks=2, program="draws_program.py")
    return ranks


@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_draws_are_the_same_after_a_restart(world: list[dict[str, Any]], name: str) -> None:
    """Bit for bit, though a new process looks at the model and the loss once more."""
    for one in world:
        assert one[name].get("message", "") == ""
        assert one[name]["continued"] == one[name]["losses"][2:]
        assert one[name]["kept"], "building has moved the run's generators"


BUILT = [one for one in CASES if one.split()[1] in {"buffer", "parameter", "init"}]


@pytest.mark.parametrize("name", in_tiers(BUILT, USUAL & {*BUILT}))
def test_models_that_draw_are_the_same_in_each_layout(world: list[dict[str, Any]], name: str) -> None:
    """What `build` and `init` draw follows from the seed alone, though ranks have other seeds."""
    layout, place, source = name.split()
    losses = world[0][name]["losses"]
    assert losses == pytest.approx(world[0][f"ddp {place} {source}"]["losses"], rel=1e-12)
    assert losses == world[1][name]["losses"], layout


@pytest.mark.parametrize("name", list(REFUSED))
def test_values_that_differ_between_ranks_are_refused(world: list[dict[str, Any]], name: str) -> None:
    """On all ranks, with the tensor's name, the ranks that differ, and what to do."""
    tensor = {"buffer": "waves", "parameter": "head.bias", "init": "waves"}[name.split()[1]]
    for one in world:
        assert one[name]["error"] == "UsageError"
        assert f"ranks 0 and 1 have built different values of {tensor}" in one[name]["message"]
        assert "seed" in one[name]["hint"]


@pytest.mark.parametrize("name", list(SENT))
def test_ddp_gives_all_ranks_the_values_of_the_first(world: list[dict[str, Any]], name: str) -> None:
    """So nothing needs to be refused."""
    assert world[0][name]["losses"] == world[1][name]["losses"]


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_cases_draw_at_all(world: list[dict[str, Any]], layout: str) -> None:
    """A loss that draws is another one than that of the same training without draws."""
    for place in ("unit", "loss"):
        drawn = world[0].get(f"{layout} {place} random")
        assert drawn is None or drawn["losses"] != world[0][f"{layout} plain"]["losses"]
