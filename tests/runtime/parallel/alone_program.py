"""A rank alone that trains, and counts what it sends."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from byte_model import ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch.utils._python_dispatch import TorchDispatchMode

from hpckit.runtime.rank.parallel_run import ParallelRun


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts those that torch runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, and count it if it is one."""
        del types
        self.count += "c10d" in str(func)
        return func(*args, **kwargs or {})


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Take three steps with all that a run offers; return how many collectives that were."""
    named = {name: case[name] for name in ("params", "recompute", "microbatches")}
    run = make_run({"parallel": named})
    with Collectives() as sent:
        mean, evaluated = _train(run)
        during = sent.count
        dist.all_reduce(torch.ones(1))
    return {"sent": during, "counted": sent.count, "mean": mean, "of": evaluated}


def _train(run: ParallelRun) -> tuple[float, float]:
    model = run.parallelize(lambda: ByteModel(blocks=2), plan())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        inputs, targets = batch(8, step)
        optimizer.zero_grad()
        run.train_step(model, inputs, targets, share=run.share(8))
        run.clip_grad_norm_(model, 1.0)
        optimizer.step()
    evaluated = float(run.evaluate(model, *batch(8, 9)))
    return run.mean(evaluated), evaluated


if __name__ == "__main__":
    run_cases(trained)
