"""Counts the bytes of tensors that are alive in a process, as they are allocated and freed."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WRAPPERS = (DTensor, AsyncCollectiveTensor)
_NOTED = 2**20
_LINES = 8
_COLLECTIVES = distributed_c10d.__file__
_CALLING = ("_fn", "inner", "__torch_dispatch__", "wrapper", "decorate_context")


class LiveBytes(TorchDispatchMode):
    """While it is entered, `now` is how many bytes of storages live, and `peak` the most so far.

    A storage counts from the operation that returned it until it is freed, or resized to nothing,
    as FSDP frees what it gathers. What a kernel uses while it runs, and what a backend of torch
    copies for a collective, are not tensors of the program, and do not count. With `names`,
    `at_peak` tells where the large ones of the peak came from.
    """

    def __init__(self, *, names: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self.at_peak: dict[int, tuple[int, str]] = {}
        self._held: dict[int, tuple[int, str]] = {}
        self._names = names
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        """Begin to count."""
        resize, see = self._resize, self._see

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            see(storage, "resize_")
            return found

        setattr(torch.UntypedStorage, "resize_", resized)  # noqa: B010  # mypy knows it as a method
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Count no more."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        setattr(torch.UntypedStorage, "resize_", self._resize)  # noqa: B010  # as above

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation on plain tensors, and count what it returns."""
        if any(issubclass(one, _WRAPPERS) for one in types):
            return NotImplemented  # they run operations on the plain tensors that they hold
        found = func(*args, **(kwargs or {}))
        for one in (found,) if isinstance(found, Tensor) else tree_leaves(found):
            if isinstance(one, Tensor) and not isinstance(one, _WRAPPERS):
                self._see(one.untyped_storage(), func)
        return found

    def mark(self) -> int:
        """Return the bytes that live now, and begin a new peak."""
        self.peak, self.at_peak = self.now, {}
        return self.now

    def largest(self, count: int = 12) -> list[str]:
        """Return what the tensors of the peak came from, those that take the most first."""
        sums: Counter[str] = Counter()
        for size, name in self.at_peak.values():
            sums[name] += size
        return [f"{size / 2**20:8.2f} MiB {name}" for name, size in sums.most_common(count)]

    def _see(self, storage: torch.UntypedStorage, what: Any) -> None:
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  # its address
        before = self._held[key][0] if key in self._held else 0
        if size == before or storage.device.type == "meta" or _is_of_backend():
            return
        if key not in self._held:
            weakref.finalize(storage, self._forget, key).atexit = False
        self._held[key] = (size, _origin(what) if self._names and size >= _NOTED else str(what))
        self.now += size - before
        if self.now > self.peak:
            self.peak = self.now
            if self._names:
                self.at_peak = dict(self._held)

    def _forget(self, key: int) -> None:
        self.now -= self._held.pop(key)[0]


def _is_of_backend() -> bool:
    """Return whether a collective called this operation: gloo copies what it sends."""
    return next(_callers(3)).f_code.co_filename == _COLLECTIVES


def _origin(what: Any) -> str:
    """Return an operation, and the lines that led to it."""
    lines = [
        f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}:{caller.f_code.co_name}"
        for caller in islice(_callers(3), _LINES)
    ]
    return f"{what}  {' < '.join(lines)}"


def _callers(skipped: int) -> Iterator[FrameType]:
    """Yield the frames that led here, without those in which torch only calls others."""
    frame: FrameType | None = sys._getframe(skipped)  # noqa: SLF001  # in Python's documentation
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name not in _CALLING and "/nn/modules/" not in file and file != __file__:
            yield frame
        frame = frame.f_back
