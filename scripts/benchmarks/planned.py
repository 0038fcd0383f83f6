"""Live bytes of a step in each layout beside those that `hpckit plan` says, on gloo ranks here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import SCRIPTS

_TESTS = SCRIPTS.parent / "tests"
_PROGRAM = _TESTS / "runtime" / "parallel" / "memory_program.py"
_MIB = 2**20


def bench_planned(folder: Path) -> None:
    """Print what is kept, and the most of a step and of an update, measured and planned."""
    sys.path.insert(0, str(_TESTS))
    from planned_memory import LAYOUTS, LENGTHS, SIZES, case_of, length_case  # noqa: PLC0415

    print("layout / size                  MiB: kept  planned, step  planned, update  planned")
    for layout in LAYOUTS:
        cases = [(f"{layout} / {size}", case_of(layout, size)) for size in SIZES]
        if layout == "context":
            cases += [(f"{layout} / {length} tokens", length_case(length)) for length in LENGTHS]
        for name, case in cases:
            print(_line(name, case, _measure(folder, case)), flush=True)


def _measure(folder: Path, case: dict[str, Any]) -> Sequence[dict[str, float]]:
    """Return what each rank of a world of its own found."""
    from rank_worlds import start_ranks  # noqa: PLC0415

    order, ranks = folder / "order.json", 1
    for size in case["layout"].values():
        ranks *= size
    order.write_text(json.dumps([case]))
    ends = start_ranks(_PROGRAM, ranks, str(order), folder=folder)
    if any(end.code for end in ends):
        sys.exit("\n".join(end.output for end in ends))
    return [json.loads((folder / f"found.{rank}").read_text())[0] for rank in range(ranks)]


def _line(name: str, case: dict[str, Any], found: Sequence[dict[str, float]]) -> str:
    from planned_memory import planned_bytes  # noqa: PLC0415

    words = [f"{name:32}"]
    for key, planned in planned_bytes(case).items():
        most = max(one[key] for one in found)
        ratio = f"{most / planned:5.2f}" if planned else "    -"
        words.append(f"{most / _MIB:7.1f} {planned / _MIB:7.1f} {ratio}")
    return "  ".join(words)
