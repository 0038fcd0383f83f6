"""One of two ranks that take steps of one kind while each way of saving runs in the background.

Rank 0 prints a line of JSON for each way: seconds of standstill, seconds until all was on disk, and
seconds by which the steps took longer than without a save.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save
from torch.nn.parallel import DistributedDataParallel

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.sample_order import Position
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.group import Group
from hpckit.runtime.checkpoint.state import StateCapturer

_STATES = {"few": 48, "many": 1024}
"""The number of tensors in 256 MiB; none is so large that hpckit would split it."""
_FLOATS = 1 << 26
_STEPS_AROUND = 100
_STEP_S = 0.02
_ROUNDS = 5


class Hpckit:
    """hpckit's own way: a thread."""

    def __init__(self, folder: Path, objects: dict[str, Any]) -> None:
        self.objects, self.steps = objects, itertools.count()
        self.checkpointer = Checkpointer(folder / "hpckit", CheckpointSettings(keep=2))

    def save(self) -> None:
        """Start a save."""
        self.checkpointer.save(self.objects, next(self.steps), 0, wait=False)

    def done(self) -> bool:
        """Whether no save is in flight."""
        return not self.checkpointer.is_saving

    def close(self) -> None:
        """Release resources."""
        self.checkpointer.close()


class Torch:
    """torch's async_save of what hpckit would write, by thread or process; without checksums."""

    def __init__(self, folder: Path, objects: dict[str, Any], kind: AsyncCheckpointerType) -> None:
        self.folder, self.objects, self.kind = folder / kind.value, objects, kind
        shared = kind is AsyncCheckpointerType.PROCESS
        self.stager = DefaultStager(StagingOptions(False, shared, False, False))  # noqa: FBT003
        self.group = dist.new_group(backend="gloo")
        self.capturer = StateCapturer(Group(timedelta(minutes=5)), Layout(replicate=dist.get_world_size()))
        self.future: Any = None
        self.steps = itertools.count()

    def save(self) -> None:
        """Start a save; two are kept, as in hpckit, and the old one is removed after the save.

        If it were removed before, the new save could reuse its space on disk and in memory.
        """
        step = next(self.steps)
        tensors = self.capturer.capture_own_share(self.objects, Position(step=step)).tensors
        self.future = async_save(
            dict(tensors),
            storage_writer=FileSystemWriter(self.folder / str(step), sync_files=True),
            process_group=self.group,
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        if dist.get_rank() == 0:
            old = self.folder / str(step - 2)
            self.future.add_done_callback(lambda _: shutil.rmtree(old, ignore_errors=True))

    def done(self) -> bool:
        """Whether no save is in flight."""
        return self.future is None or self.future.done()

    def close(self) -> None:
        """Release resources; raises what a save raised."""
        self.future.result()
        self.stager.close()


def _python() -> None:
    total = 0
    for number in range(_COUNT["python"]):
        total += number & 3


def _compute() -> None:
    for _ in range(_COUNT["compute"]):
        torch.mm(_MATRIX, _MATRIX)


def _idle() -> None:
    time.sleep(_STEP_S)


_MATRIX = torch.rand(256, 256)
_COUNT = {"python": 1, "compute": 1}
_KINDS: dict[str, Callable[[], None]] = {"idle": _idle, "compute": _compute, "python": _python}


def _calibrate(kind: str) -> None:
    """Adjust the work of a step to its intended length; it is then the same on both ranks."""
    while kind in _COUNT:
        began = time.perf_counter()
        _KINDS[kind]()
        took = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if took.item() > _STEP_S / 4:
            _COUNT[kind] = max(int(_COUNT[kind] * _STEP_S / took.item()), 1)
            return
        _COUNT[kind] *= 2


def _watch(step: Callable[[], None], way: Any) -> tuple[float, float, float]:
    """Return seconds of standstill, until done, and of all steps around one save."""
    stall = until = saved = 0.0
    began = time.perf_counter()
    for number in range(_STEPS_AROUND):
        if number == _STEPS_AROUND // 10 and way is not None:
            saved = time.perf_counter()
            way.save()
            stall = time.perf_counter() - saved
        step()
        dist.all_reduce(torch.ones(1))
        if way is not None and not until and stall and way.done():
            until = time.perf_counter() - saved
    whole = time.perf_counter() - began
    if way is None:
        return 0.0, 0.0, whole
    while not way.done():
        time.sleep(0.001)
    until = until or time.perf_counter() - saved
    dist.barrier()
    return stall, until, whole


def _first(way: Any) -> tuple[float, float]:
    """Return standstill and seconds until done of the first save, with nothing else running."""
    began = time.perf_counter()
    way.save()
    stall = time.perf_counter() - began
    while not way.done():
        time.sleep(0.001)
    dist.barrier()
    return stall, time.perf_counter() - began


def _report(kind: str, state: str, name: str, seen: list[tuple[float, float, float]]) -> None:
    stall, until, lost = (statistics.median(one) for one in zip(*seen, strict=True))
    low, high = min(one[2] for one in seen), max(one[2] for one in seen)
    line = {"kind": kind, "state": state, "way": name, "stall_s": stall, "until_s": until}
    if dist.get_rank() == 0:
        print(json.dumps(line | {"lost_s": lost, "lost_range_s": [low, high]}), flush=True)


def main(folder: Path, state: str) -> None:
    """Compare all ways with all kinds of steps, in turn, over several rounds."""
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    dist.init_process_group("gloo")
    tensors = [torch.rand(_FLOATS // _STATES[state]) for _ in range(_STATES[state])]
    objects = {"model": DistributedDataParallel(torch.nn.ParameterList(tensors))}
    ways: dict[str, Any] = {
        "hpckit": Hpckit(folder, objects),
        "torch thread": Torch(folder, objects, AsyncCheckpointerType.THREAD),
        "torch process": Torch(folder, objects, AsyncCheckpointerType.PROCESS),
    }
    for name, way in ways.items():
        stall, until = _first(way)
        _report("first", state, name, [(stall, until, 0.0)])
    for kind, step in _KINDS.items():
        _calibrate(kind)
        seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        for _ in range(_ROUNDS):
            bare = [_watch(step, None)[2]]
            for name, way in ways.items():
                stall, until, whole = _watch(step, way)
                bare.append(_watch(step, None)[2])
                seen[name].append((stall, until, whole - sum(bare[-2:]) / 2))
        for name, rows in seen.items():
            _report(kind, state, name, rows)
    for way in ways.values():
        way.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
