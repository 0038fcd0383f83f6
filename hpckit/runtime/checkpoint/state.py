"""Registered objects as flat tensors, this rank's share of them, and the way back.

Decides which rank saves what, and handles models whose names depend on how they are wrapped. A
tensor sharded over ranks (DTensor) is saved by all of them; parameters under
DistributedDataParallel, and their optimizer's state, are spread over the ranks (sharding.py); rank
0 saves everything else. So any number of ranks can load what any other number saved.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hpckit.runtime.checkpoint import rng
from hpckit.runtime.checkpoint.encoding import SKELETON, decode_state, encode_state
from hpckit.runtime.checkpoint.sharding import TensorPiece, own_pieces

_COMPILED = "_orig_mod."


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCapture:
    """What one rank saves: its tensors, the names of all objects, and a digest of all keys.

    `pieces` are its rows of tensors that are cut over the ranks.
    """

    step: int
    samples: int
    objects: tuple[str, ...]
    tensors: Mapping[str, torch.Tensor]
    pieces: tuple[TensorPiece, ...] = ()
    layout: str


def capture_state(
    objects: Mapping[str, Any], position: tuple[int, int], rank: int, world_size: int
) -> StateCapture:
    """Capture this rank's share of the state at a position (step, samples); raises StateError.

    The tensors are the live ones, not copies.
    """
    encoded = {name: encode_state(name, state_of(one)) for name, one in objects.items()}
    tensors = {key: one for part in encoded.values() for key, one in part.items()}
    names = _spread(objects, encoded)
    spread = {
        key: one for key, one in tensors.items() if key in names and not isinstance(one, DTensor)
    }
    shares = own_pieces(spread, rank, world_size)
    mine = {one.key: one.tensor for one in shares if one.tensor.shape == one.shape} | {
        key: one
        for key, one in tensors.items()
        if isinstance(one, DTensor) or (rank == 0 and key not in spread)
    }
    return StateCapture(
        step=position[0],
        samples=position[1],
        objects=tuple(sorted(objects)),
        tensors=mine | encode_state(rng_path(rank), rng.capture_rng()),
        pieces=tuple(one for one in shares if one.tensor.shape != one.shape),
        layout=_layout(tensors),
    )


def state_of(value: Any) -> Any:
    """Return an object's state; for a model, without the name prefixes of DDP and torch.compile."""
    if not isinstance(value, nn.Module):
        return value.state_dict()
    return {_bare(name): one for name, one in _unwrapped(value).state_dict().items()}


def load_into(value: Any, state: Any) -> None:
    """Restore an object's state; raises what its `load_state_dict` raises."""
    if not isinstance(value, nn.Module):
        value.load_state_dict(state)
        return
    module = _unwrapped(value)
    live = module.state_dict()
    names = {_bare(name): name for name in live}
    renamed = OrderedDict((names.get(name, name), one) for name, one in state.items())
    renamed._metadata = getattr(live, "_metadata", {})  # type: ignore[attr-defined]  # noqa: SLF001  # torch reads it
    module.load_state_dict(renamed)


def _unwrapped(module: nn.Module) -> nn.Module:
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _bare(name: str) -> str:
    return name.replace(_COMPILED, "")


def _ddp(value: Any) -> DistributedDataParallel | None:
    while isinstance(value, nn.Module):
        if isinstance(value, DistributedDataParallel):
            return value
        value = getattr(value, "_orig_mod", None)
    return None


def _spread(
    objects: Mapping[str, Any], encoded: Mapping[str, Mapping[str, torch.Tensor]]
) -> set[str]:
    """Return the keys of tensors that DDP keeps the same on all ranks."""
    keys: set[str] = set()
    alike: set[int] = set()
    for name, value in objects.items():
        wrapped = _ddp(value)
        if wrapped is None or getattr(wrapped, "parameters_to_ignore", None):
            continue
        parameters = dict(wrapped.module.named_parameters(remove_duplicate=False))
        alike |= {id(one) for one in parameters.values()}
        keys |= {f"{name}/{_bare(one)}" for one in parameters}
    for name, value in objects.items():
        if isinstance(value, Optimizer) and {id(one) for one in _parameters(value)} <= alike:
            keys |= {key for key in encoded[name] if not key.endswith(SKELETON)}
    return keys


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _layout(tensors: Mapping[str, torch.Tensor]) -> str:
    lines = (
        f"{key} {tuple(one.shape)} {one.dtype}"
        for key, one in sorted(tensors.items())
        if not key.endswith(SKELETON)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def rng_path(rank: int) -> str:
    """Return the path of the generators of a rank."""
    return f"rng/{rank:05d}"


def below(paths: Iterable[str], key: str) -> bool:
    """Return whether a key belongs to one of these objects."""
    return any(key.startswith((path + "/", path + SKELETON)) for path in paths)


def like(objects: Mapping[str, Any], key: str, shape: torch.Size, dtype: torch.dtype) -> Any:
    """Return an empty tensor to load a key into, sharded like the live one, or on the CPU.

    Never the live tensor itself: a load that fails half-way must leave no trace.
    """
    name, _, path = key.partition("/")
    live = _live(objects.get(name), path)
    if isinstance(live, DTensor) and live.shape == shape:
        return torch.empty_like(live, dtype=dtype)
    return torch.empty(shape, dtype=dtype)


def _live(value: Any, path: str) -> torch.Tensor | None:
    if isinstance(value, nn.Module):
        return state_of(value).get(path)  # type: ignore[no-any-return]
    if isinstance(value, Optimizer):
        _, _, rest = path.partition("state/")
        index, _, _ = rest.partition("/")
        return _parameters(value)[int(index)] if index.isdigit() else None
    return None


def rebuild(paths: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the states at these paths, built from the loaded tensors."""
    return {path: decode_state(path, tensors) for path in paths}
