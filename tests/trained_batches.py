"""Reads which batches the trainings in `integrations/trained` have trained, and what a stop has undone."""

import json
from pathlib import Path
from typing import Any

LIBRARIES = ("lightning", "transformers", "accelerate")
TRAINED = Path(__file__).parent / "integrations" / "trained"
STEPS = 18
"""Of 3 epochs of 48 samples, in batches of 2 on 2 ranks, of which 2 make a step."""


def read_rows(work: Path, training: str, rank: int) -> list[dict[str, Any]]:
    """Return the whole rows of a rank; the last may be half-written."""
    file = work / f"{training}-{rank}.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def list_effective_batches(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what is left of the batches once each start has undone what it trains again."""
    kept: list[dict[str, Any]] = []
    for row, before in zip(rows, [None, *rows], strict=False):
        if before is not None and row["start"] != before["start"]:
            kept = [one for one in kept if one["step"] < row["step"]]
        kept.append(row)
    return [(row["step"], row["loss"], row["samples"], row["more"]) for row in kept]
