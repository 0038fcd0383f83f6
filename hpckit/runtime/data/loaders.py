"""Data loaders that users register as training state, such as torchdata's StatefulDataLoader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from hpckit.errors import UsageError


def check_no_loader(name: str, value: Any, world_size: int) -> None:
    """Raise UsageError for a data loader with more than one rank: its state is each rank's own.

    Checkpoints keep one state for all ranks, and that of a loader fits its number of ranks only.
    """
    if world_size > 1 and isinstance(value, DataLoader) and hasattr(value, "state_dict"):
        raise UsageError(
            f"run.state({name}=…) got a {type(value).__name__} on {world_size} ranks: its position "
            "is each rank's own, and checkpoints keep one state for all ranks",
            hint="run.batches(dataset, batch_size=…) takes its position from the step, with any "
            "number of ranks; on a single rank a stateful loader can be registered",
        )
