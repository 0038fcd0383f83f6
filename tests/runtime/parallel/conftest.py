"""Worlds of gloo ranks that train a small model in one layout after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_worlds import start_ranks
from tiers import chosen

HERE = Path(__file__).parent


def run_world(
    folder: Path, cases: dict[str, Any], *, ranks: int, program: str = "equality_program.py"
) -> list[dict[str, Any]]:
    """Run the cases in a world of ranks; return for each rank what it found, by case."""
    order = folder / "order.json"
    order.write_text(json.dumps([{"name": name, **one} for name, one in cases.items()]))
    ends = start_ranks(HERE / program, ranks, str(order), folder=folder)
    last = [f"{end.code} {end.output.splitlines()[-1:]}" for end in ends]
    outputs = "\n\n".join(end.output[-3000:] for end in ends)
    assert all(end.code == 0 for end in ends), f"ended with {last}\n{outputs}"
    found = [json.loads((folder / f"found.{rank}").read_text()) for rank in range(ranks)]
    return [dict(zip(cases, one, strict=True)) for one in found]


@pytest.fixture(scope="session", name="in_world")
def in_world_fixture() -> Any:
    """Hand out what runs cases in a world."""
    return run_world


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank of a module's world found, by case.

    The module names its CASES, the PROGRAM beside it, and RANKS if there are other than two. If it
    has NEEDED, only these cases are tried, and those that its tests are to run with.
    """
    module = request.module
    cases = module.CASES
    if hasattr(module, "NEEDED"):
        cases = chosen(request, cases, needed=module.NEEDED)
    folder = tmp_path_factory.mktemp(Path(module.PROGRAM).stem)
    program = str(request.path.with_name(module.PROGRAM))
    return run_world(folder, cases, ranks=getattr(module, "RANKS", 2), program=program)
