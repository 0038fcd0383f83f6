"""One rank of a world that saves and loads one model in all layouts, and compares every bit.

The model is trained for some steps by each rank alone, in the same way;
this is the reference. Each world loads every checkpoint there is into every layout that it can
make, compares what is there with the reference, and saves it in that layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from one_mesh import init_device_mesh
from runtime.checkpoint.orders import follow_orders
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hpckit.model.parallel.layout import Layout
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

WORDS, WIDTH, INNER, BLOCKS = 11, 6, 10, 3
TIED = {"head.weight": "embed.weight"}


class Block(nn.Module):
    """Two linear layers and a buffer; no size divides the number of ranks."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the layers make of the input."""
        self.seen += x.detach().mean()
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Net(nn.Module):
    """Embedding, blocks keyed by their number, norm, and a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(BLOCKS)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(WIDTH)
        self.head: nn.Linear | None = nn.Linear(WIDTH, WORDS, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the head's weight the embedding's, where both are here."""
        if self.embed is not None and self.head is not None:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run whatever of the model is here."""
        for module in (self.embed, *self.blocks.values(), self.norm, self.head):
            x = x if module is None else module(x)
        return x

    def keep_stage(self, stage: int, stages: int) -> None:
        """Drop what is of other stages."""
        for number in range(BLOCKS):
            if number * stages // BLOCKS != stage:
                del self.blocks[str(number)]
        if stage > 0:
            self.embed = None
        if stage < stages - 1:
            self.norm = self.head = None


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW with a group for matrices and one for the rest."""
    ones = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [one for one in ones if one.dim() > 1], "weight_decay": 0.1},
            {"params": [one for one in ones if one.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )


def build_ddp(net: Net, layout: Layout) -> nn.Module:
    """Return the model as every rank has it whole."""
    return DistributedDataParallel(net) if layout.world_size > 1 else net


def build_cut(net: Net, layout: Layout) -> nn.Module:
    """Return the model cut by stage, then by tensor, then sharded, as the layout says."""
    sizes = [size for size in layout.sizes.values() if size > 1]
    names = tuple(axis.value for axis, size in layout.sizes.items() if size > 1)
    mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=names)
    if layout.pipeline > 1:
        net.keep_stage(mesh.get_local_rank("pipeline"), layout.pipeline)
    if layout.tensor > 1:
        for block in net.blocks.values():
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tensor"], plan)
        net.tie()
    if layout.shard > 1:
        dims = tuple(name for name in ("replicate", "shard") if name in names)
        sharding = mesh[dims] if len(dims) > 1 else mesh["shard"]
        for module in (*net.blocks.values(), net):
            fully_shard(module, mesh=sharding)
    elif layout.replicate > 1:
        return DistributedDataParallel(net, process_group=mesh["replicate"].get_group())
    return net


@dataclass(frozen=True, slots=True)
class Case:
    """A layout and how the model gets into it."""

    layout: Layout
    build: Callable[[Net, Layout], nn.Module] = build_cut


CASES: dict[int, dict[str, Case]] = {
    4: {
        "ddp": Case(Layout(replicate=4), build_ddp),
        "fsdp": Case(Layout(shard=4)),
        "hsdp": Case(Layout(replicate=2, shard=2)),
        "tensor": Case(Layout(tensor=4)),
        "fsdp-tensor": Case(Layout(shard=2, tensor=2)),
        "pipeline-ddp": Case(Layout(replicate=2, pipeline=2)),
        "pipeline-fsdp": Case(Layout(pipeline=2, shard=2)),
        "pipeline-tensor": Case(Layout(pipeline=2, tensor=2)),
    },
    3: {
        "ddp": Case(Layout(replicate=3), build_ddp),
        "fsdp": Case(Layout(shard=3)),
        "pipeline": Case(Layout(pipeline=3)),
    },
    2: {
        "ddp": Case(Layout(replicate=2), build_ddp),
        "fsdp": Case(Layout(shard=2)),
        "tensor": Case(Layout(tensor=2)),
        "pipeline": Case(Layout(pipeline=2)),
    },
    1: {"alone": Case(Layout(), build_ddp)},
}
"""The layouts of each number of ranks."""


class Setup:
    """A model and its optimizer in a layout, with values that are nobody's until it loads some."""

    def __init__(self, case: Case, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.layout = case.layout
        self.model = case.build(self.net, case.layout)
        self.optimizer = make_optimizer(self.model)
        self.optimizer.param_groups[0]["lr"] = 3.0

    @property
    def objects(self) -> dict[str, Any]:
        """Return what is registered."""
        return {"model": self.model, "optimizer": self.optimizer}

    def values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all of parameters, buffers and optimizer state that is here, whole, by name."""
        for name, tensor in self.net.state_dict(keep_vars=True).items():
            yield name, whole(tensor)
            for entry, value in self.optimizer.state.get(tensor, {}).items():
                yield f"{name}: {entry}", whole(value)

    def misplaced(self) -> list[str]:
        """Return the names of parameters whose moments are not sharded as they are."""
        state = self.net.state_dict(keep_vars=True)
        return [
            name
            for name, one in state.items()
            for entry, moment in self.optimizer.state.get(one, {}).items()
            if entry != "step" and placed(moment) != placed(one)
        ]

    def names(self) -> set[str]:
        """Return the names of all that should be here."""
        state = self.net.state_dict(keep_vars=True)
        entries = ("step", "exp_avg", "exp_avg_sq")
        moments = {
            f"{name}: {entry}"
            for name, one in state.items()
            if isinstance(one, nn.Parameter)
            for entry in entries
        }
        return {*state, *moments}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that may be sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def placed(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return how a tensor is sharded; nothing if it is not."""
    return tensor.placements if isinstance(tensor, DTensor) else ()


def train_reference() -> Setup:
    """Return a model that was trained for three steps, the same on every rank."""
    setup = Setup(Case(Layout(), lambda net, _: net), 1)
    setup.optimizer.param_groups[0]["lr"] = 0.02
    for _ in range(3):
        words = torch.randint(WORDS, (4, 5))
        setup.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(setup.model(words).flatten(0, 1), words.flatten())
        torch.autograd.backward(loss)
        setup.optimizer.step()
    return setup


def differences(setup: Setup, reference: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of what is not bit for bit as in the reference, or not there."""
    found = dict(setup.values())
    rates = [group["lr"] for group in setup.optimizer.param_groups]
    unlike = [name for name, one in found.items() if not torch.equal(one, reference[name])]
    return (
        unlike
        + setup.misplaced()
        + sorted(setup.names() ^ found.keys())
        + ([] if rates == [0.02, 0.01] else [f"lr {rates}"])
    )


def restore(folder: Path, setup: Setup) -> Any:
    """Load the newest checkpoint into the setup."""
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=2, layout=setup.layout))
    checkpointer.tie({setup.objects["model"]: TIED})
    try:
        return checkpointer.restore(setup.objects)
    finally:
        checkpointer.close()


def save(folder: Path, setup: Setup, *, wait: bool) -> int:
    """Save the setup; return the bytes of all files."""
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=1, layout=setup.layout))
    checkpointer.tie({setup.objects["model"]: TIED})
    checkpointer.save(setup.objects, 3, 24, wait=wait)
    checkpointer.close()
    return sum(one.stat().st_size for one in folder.rglob("*.distcp"))


def go_through_all(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Load each of the checkpoints into every layout, save in every layout; tell what differs."""
    root = Path(orders["folder"])
    trained = train_reference()
    reference = dict(trained.values())
    sources = sorted(one.name for one in root.glob(orders["sources"]))
    if not sources:
        setup = Setup(Case(Layout(replicate=world_size), build_ddp), 1)
        setup.net.load_state_dict(trained.net.state_dict())
        setup.optimizer.load_state_dict(trained.optimizer.state_dict())
        save(root / "reference", setup, wait=True)
        sources = ["reference"]
    wrong: dict[str, list[str]] = {}
    for number, (to, case) in enumerate(CASES[world_size].items()):
        for name in sources:
            setup = Setup(case, 2)
            restore(root / name, setup)
            wrong[f"{name} to {to}"] = differences(setup, reference)
        if orders["save"]:
            save(root / f"{to}-of-{world_size}", setup, wait=bool(number % 2))
    return {"wrong": wrong}


def load_more_blocks(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Load a checkpoint of two stages into a last stage that has one block more."""
    setup = Setup(Case(Layout(pipeline=world_size)), 1)
    save(Path(orders["folder"]), setup, wait=True)
    if dist.get_rank() == world_size - 1:
        setup.net.blocks["7"] = Block()
    restore(Path(orders["folder"]), setup)
    return {}


def load_fewer_blocks(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Load a checkpoint of two stages into stages one of which has lost a block."""
    save(Path(orders["folder"]), Setup(Case(Layout(pipeline=world_size)), 1), wait=True)
    setup = Setup(Case(Layout(pipeline=world_size)), 1)
    if "2" in setup.net.blocks:
        del setup.net.blocks["2"]
    setup.optimizer = make_optimizer(setup.model)
    restore(Path(orders["folder"]), setup)
    return {}


def save_unlike_stages(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Save stages whose blocks have the same name, and other sizes."""
    setup = Setup(Case(Layout(pipeline=world_size)), 1)
    setup.net.blocks = nn.ModuleDict({"0": nn.Linear(2, 2 + dist.get_rank())})
    setup.optimizer = make_optimizer(setup.model)
    save(Path(orders["folder"]), setup, wait=False)
    return {}


def save_optimizer_alone(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Save the optimizer of a stage without its model."""
    setup = Setup(Case(Layout(pipeline=world_size)), 1)
    checkpointer = Checkpointer(Path(orders["folder"]), CheckpointSettings(layout=setup.layout))
    checkpointer.save({"optimizer": setup.optimizer}, 1, 1, wait=True)
    return {}


def save_recomputed(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Save a model whose layers are recomputed, under DDP; return the keys this rank spreads."""
    layers = nn.Sequential(*(checkpoint_wrapper(nn.Linear(64, 64)) for _ in range(8)))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    layers(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    checkpointer = Checkpointer(Path(orders["folder"]), CheckpointSettings())
    checkpointer.save({"model": model, "optimizer": optimizer}, 1, 1, wait=True)
    checkpointer.close()
    return {"world_size": world_size}


class Tally:
    """A user's own state, of one tensor."""

    def __init__(self, size: int) -> None:
        self.seen = torch.zeros(size)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensor."""
        return {"seen": self.seen}


def save_unlike_tallies(orders: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Save stages with an object of their own that differs by rank."""
    setup = Setup(Case(Layout(pipeline=world_size)), 1)
    checkpointer = Checkpointer(Path(orders["folder"]), CheckpointSettings(layout=setup.layout))
    checkpointer.save({**setup.objects, "tally": Tally(dist.get_rank())}, 1, 1, wait=True)
    return {}


if __name__ == "__main__":
    follow_orders(
        go_through_all,
        load_more_blocks,
        load_fewer_blocks,
        save_unlike_stages,
        save_optimizer_alone,
        save_recomputed,
        save_unlike_tallies,
    )
