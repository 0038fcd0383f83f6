"""Saves until the disk is full; started in a mount namespace with a small disk of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

MIB = 1 << 20


def fill(disk: Path) -> list[dict[str, object]]:
    """Save 1 MiB eight times on 4.5 MiB, a third of which is something else's until step 6."""
    checkpointer = Checkpointer(disk / "checkpoints", CheckpointSettings(epoch=1, keep=5))
    (disk / "filler").write_bytes(bytes(3 * MIB // 2))
    seen = []
    for step in range(1, 9):
        model = torch.nn.Linear(512, 512, bias=False)
        outcome = checkpointer.save({"model": model}, step, 0, wait=step % 2 == 0)
        outcome = outcome if step % 2 == 0 else checkpointer.wait_for_save()
        assert outcome is not None
        there = sorted(int(path.name[5:13]) for path in (disk / "checkpoints").glob("step-*"))
        seen.append({"saved": outcome.committed, "warning": outcome.warning, "there": there})
        if step == 5:
            (disk / "filler").unlink()
    restored = checkpointer.restore({"model": torch.nn.Linear(512, 512, bias=False)})
    checkpointer.close()
    return [*seen, {"restored": restored.step if restored else None}]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fill(Path(sys.argv[1]))))
