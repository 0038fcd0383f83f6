"""Tensors in memory as a checkpoint that torch.distributed.checkpoint reads: into any sharding."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future


class _MappedStorage(StorageReader):
    """Hands out parts of whole tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: there is one checkpoint."""

    def read_metadata(self, *_args: Any, **_named: Any) -> Metadata:
        """Return what there is: each tensor as one piece."""
        return Metadata(
            state_dict_metadata={
                key: TensorStorageMetadata(
                    properties=TensorProperties.create_from_tensor(one),
                    size=one.shape,
                    chunks=[
                        ChunkStorageMetadata(
                            offsets=torch.Size([0] * one.dim()),
                            sizes=one.shape,
                        )
                    ],
                )
                for key, one in self._tensors.items()
            }
        )

    def set_up_storage_reader(self, *_args: Any, **_named: Any) -> None:
        """Do nothing."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what the plan wants of each tensor."""
        for item in plan.items:
            source = self._tensors[item.storage_index.fqn]
            for axis, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                source = source.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return False: it is never found by a name."""
        del checkpoint_id
        return False


def copy_parts(source: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Fill tensors, or the shards of them that this rank has, from whole tensors by key.

    Each rank does so by itself. Raises CheckpointException (a BaseException).
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(dict(wanted), storage_reader=_MappedStorage(source), no_dist=True)
