"""One of four ranks that train a model in each layout, by hpckit and by hand, step by step in turn.

Both take equal batches; a pair of steps, one of each, gives one ratio, so that what else the
machine does meets both. Rank 0 prints a line of JSON for each layout. Then the model is saved in
each layout, and loaded in the next one, by hpckit and by torch's distributed checkpoint.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.programs.hand_written import LENGTH, ROWS, VALUES, Model, Step, lay_out
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from hpckit import Plan
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.rank.parallel_run import ParallelRun

LAYOUTS: dict[str, dict[str, int]] = {
    "ddp": {"replicate": 4},
    "fsdp": {"shard": 4},
    "hsdp": {"replicate": 2, "shard": 2},
    "tensor": {"tensor": 4},
    "context": {"context": 4},
    "fsdp x tensor": {"shard": 2, "tensor": 2},
    "pipeline": {"pipeline": 4},
}
PLAN = Plan(
    units="blocks.*",
    first="tokens",
    last=("norm", "head"),
    columns=(
        *("blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value"),
        *("blocks.*.feed.up", "head"),
    ),
    rows=("blocks.*.attention.out", "blocks.*.feed.down", "tokens"),
    sequence=("blocks.*.norm1", "blocks.*.norm2", "norm"),
    heads={"blocks.*": (4, 4)},
)
WARM_UP = 3


def run_of(layout: Layout) -> ParallelRun:
    """Return what this rank would get in a run."""
    rank, world = dist.get_rank(), dist.get_world_size()
    info = RankInfo(
        rank=rank,
        world_size=world,
        local_rank=rank,
        local_world_size=world,
        node_rank=0,
        num_nodes=1,
        source=RankSource.torchrun,
    )
    return ParallelRun(info=info, device=torch.device("cpu"), seed=1, layout=layout, parallel=Parallel())


def by_hpckit(layout: Layout) -> tuple[nn.Module, Step]:
    """Return a model in a layout, and a step of it."""
    run = run_of(layout)
    model = run.parallelize(Model, PLAN)
    return model, lambda inputs, targets: run.train_step(model, inputs, targets)


def batch(layout: Layout, step: int) -> tuple[Tensor, Tensor]:
    """Return this data rank's inputs and targets."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(VALUES, (ROWS * layout.data_size, LENGTH + 1), generator=generator)
    own = text[layout.data_rank(dist.get_rank()) :: layout.data_size]
    return own[:, :-1], own[:, 1:]


def timed_step(optimizer: Any, step: Step, given: tuple[Tensor, Tensor]) -> tuple[float, float, float]:
    """Return the seconds of one whole step, the CPU seconds that this rank took for it, and MiB.

    All ranks begin together, and the step ends with the last. The MiB are what this machine sent to
    itself meanwhile: all ranks together.
    """
    dist.barrier()
    began, used, sent = time.perf_counter(), time.process_time(), sent_mib()
    optimizer.zero_grad()
    step(*given)
    optimizer.step()
    used = time.process_time() - used
    dist.barrier()
    return time.perf_counter() - began, used, sent_mib() - sent


def sent_mib() -> float:
    """Return what has gone over the loopback device since the machine began."""
    counted = Path("/sys/class/net/lo/statistics/tx_bytes")
    return int(counted.read_text()) / 2**20


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Return the seconds of each pair of steps, the CPU seconds of all ranks, and the MiB sent."""
    layout = Layout(**LAYOUTS[name])
    ways = [by_hpckit(layout), lay_out(LAYOUTS[name], dist.get_rank())]
    made = [(torch.optim.AdamW(m.parameters(), lr=1e-4), s) for m, s in ways]
    took: list[list[tuple[float, float, float]]] = [[], []]
    for number in range(pairs + WARM_UP):
        given = batch(layout, number)
        for way in (0, 1) if number % 2 else (1, 0):
            each = timed_step(*made[way], given)
            if number >= WARM_UP:
                took[way].append(each)
    wall, cpu, sent = torch.tensor(took, dtype=torch.float64).unbind(-1)
    cpu = cpu.contiguous()
    dist.all_reduce(cpu)
    measured = {"wall_s": wall, "cpu_s": cpu, "sent_mib": sent}
    return {"layout": name, **{key: values.tolist() for key, values in measured.items()}}


def moved(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Save in each layout and load in the next one, by both; return seconds and bytes."""
    found = []
    names = list(LAYOUTS)
    for source, target in zip(names, names[1:] + names[:1], strict=True):
        rows: dict[str, Any] = {"from": source, "to": target, "hpckit": [], "torch": []}
        here, there = trained(source), trained(target)
        for number in range(repeats):
            for kind, way in (("hpckit", by_checkpointer), ("torch", by_dcp)):
                at = folder / f"{source}-{number}-{kind}"
                saved, loaded = way(at, here, there)
                rows[kind].append((saved, loaded, size_of(at)))
        found.append(rows)
    return found


def size_of(folder: Path) -> int:
    """Return the bytes of all files; rank 0 removes them when all ranks have counted."""
    size = sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    return size


def trained(name: str) -> tuple[Layout, nn.Module, torch.optim.Optimizer]:
    """Return a model that has taken one step in a layout."""
    layout = Layout(**LAYOUTS[name])
    model, step = by_hpckit(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timed_step(optimizer, step, batch(layout, 0))
    return layout, model, optimizer


def by_checkpointer(folder: Path, here: Any, there: Any) -> tuple[float, float]:
    """Return the seconds of saving and of loading by hpckit."""

    def save() -> None:
        kept = Checkpointer(folder, CheckpointSettings(epoch=1, layout=here[0]))
        kept.save({"model": here[1], "optimizer": here[2]}, 1, 1, wait=True)
        kept.close()

    def load() -> None:
        kept = Checkpointer(folder, CheckpointSettings(epoch=2, layout=there[0]))
        kept.restore({"model": there[1], "optimizer": there[2]})
        kept.close()

    return together(save), together(load)


def by_dcp(folder: Path, here: Any, there: Any) -> tuple[float, float]:
    """Return the seconds of saving and of loading by torch, without checksums or flushing."""

    def save() -> None:
        model, optimizer = get_state_dict(here[1], here[2])
        state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load() -> None:
        model, optimizer = get_state_dict(there[1], there[2])
        state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        set_state_dict(there[1], there[2], model_state_dict=model, optim_state_dict=optimizer)

    return together(save), together(load)


def together(what: Callable[[], None]) -> float:
    """Return the seconds until all ranks have done it."""
    dist.barrier()
    began = time.perf_counter()
    what()
    dist.barrier()
    return time.perf_counter() - began


def main() -> None:
    """Compare all layouts, then move between them."""
    folder, pairs, repeats = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    wanted = sys.argv[4].split(",") if len(sys.argv) > 4 else list(LAYOUTS)  # noqa: PLR2004
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in wanted:
        tell(compare(name, pairs))
    for row in moved(folder, repeats) if repeats else ():
        tell(row)
    dist.destroy_process_group()


def tell(row: dict[str, Any]) -> None:
    """Print a result on rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
