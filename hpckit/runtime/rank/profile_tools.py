"""The two tools that record a profile of this process: torch's profiler, and nsys around it.

Neither is touched before a profile begins. Each raises what torch raises; the caller makes a note
of it, and training continues.
"""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from hpckit.model.environment.torch_version import is_version_older
from hpckit.model.settings import ProfileTool
from hpckit.record.store import PRIVATE_FILE, make_private_folder
from hpckit.values import dataclass, field

_LEVEL = 1
"""Of gzip: a trace becomes ten times smaller at 200 MB/s; better levels make training wait."""


_PREPARED_TWICE = (2, 13)
"""In torch 2.9 the user's own profiler cannot start while ours warms up: there ours begins cold."""
_OURS = 2
"""Says, instead of True, that the profiler which runs is ours."""


@dataclass(slots=True)
class TorchRecorder:
    """Records with torch.profiler into a compressed Chrome trace.

    A process has one profiler. If the user's code starts its own, ours gives way: to end ours would
    end theirs, and to write its trace would crash the process (torch 2.13).
    """

    trace: Path
    _profiler: Any = field(default=None, init=False)
    _records: bool = field(default=False, init=False)
    _held: Any = field(default=None, init=False)

    def begin_profile(self) -> None:
        """Start the profiler; the first step below it is slower, and is warm-up.

        Raises RuntimeError if the user's code has one running.
        """
        self._refuse_other_profiler()
        tool = torch.profiler
        action, kinds = tool.ProfilerAction, tool.ProfilerActivity
        first = {0: action.NONE if is_version_older(torch.__version__, _PREPARED_TWICE) else action.WARMUP}
        # It ends with `stop_and_write`, at whichever step that comes.
        self._profiler = tool.profile(
            activities=[kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU],
            schedule=lambda step: first.get(step, action.RECORD),
            on_trace_ready=self._write_trace,
        )
        self._profiler.start()

    def record_next_step(self) -> None:
        """Begin to record, or mark that the next step begins; raises as `begin_profile`."""
        self._refuse_other_profiler()
        self._profiler.step()
        if not self._records:
            self._records = True
            torch.autograd.profiler._is_profiler_enabled = _OURS  # type: ignore[assignment]  # noqa: SLF001  # as in `_refuse_other_profiler`

    def stop_and_keep(self) -> None:
        """Stop the profiler, and keep what it has recorded.

        torch would wait for the GPU: kernels that wait for ranks which have failed never end.
        """
        profiler = self._release_profiler()
        profiler.on_trace_ready = None
        if profiler.profiler is not None:
            profiler.profiler.use_device = None
        profiler.stop()
        self._held = profiler

    def stop_and_write(self) -> int:
        """Stop the profiler, and write the trace; return the size of the file."""
        if self._held is None:
            self._release_profiler().stop()
        else:
            held, self._held = self._held, None
            self._write_trace(held)
        return self.trace.stat().st_size

    def stop_and_drop(self) -> None:
        """Stop the profiler, without a trace."""
        if self._profiler is not None:
            profiler = self._release_profiler()
            profiler.on_trace_ready = None
            profiler.stop()

    def _release_profiler(self) -> Any:
        self._refuse_other_profiler()
        profiler, self._profiler = self._profiler, None
        return profiler

    def _refuse_other_profiler(self) -> None:
        """Raise RuntimeError if the profiler that runs now is not ours; forget ours then.

        torch notes that one runs in a variable, which every start and stop sets: a start of ours
        has a value of its own.
        """
        running = torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001  # torch has no other sign
        if running != (_OURS if self._records else False):
            self._profiler = None
            raise RuntimeError("the run's own code has started a profiler")

    def _write_trace(self, profiler: Any) -> None:
        """Write the trace so that it is there as a whole or not at all."""
        make_private_folder(self.trace.parent)
        token = os.urandom(4).hex()
        plain = self.trace.with_name(f".{self.trace.name}.{token}.json")
        packed = self.trace.with_name(f".{self.trace.name}.{token}")
        try:
            os.close(os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
            profiler.export_chrome_trace(str(plain))
            if not _is_complete_json(plain):
                raise OSError("the trace is incomplete: the disk may be full")
            handle = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with (
                plain.open("rb") as source,
                os.fdopen(handle, "wb") as raw,
                gzip.GzipFile("", "wb", _LEVEL, raw) as file,
            ):
                shutil.copyfileobj(source, file, 1 << 20)
            packed.replace(self.trace)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)


def _is_complete_json(file: Path) -> bool:
    """Return whether a JSON object in this file has its end; torch does not report a full disk."""
    with file.open("rb") as stream:
        stream.seek(max(stream.seek(0, os.SEEK_END) - 100, 0))
        return stream.read().rstrip().endswith(b"}")


@dataclass(slots=True)
class NsysRecorder:
    """Marks the window that the nsys around this process records."""

    report: Path
    _begun: bool = field(default=False, init=False)

    def begin_profile(self) -> None:
        """Do nothing: nsys is there from the start."""

    def record_next_step(self) -> None:
        """Begin to record, or do nothing if that has begun."""
        if not self._begun:
            self._begun = True
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def stop_and_keep(self) -> None:
        """End the window now."""
        self.stop_and_drop()

    def stop_and_write(self) -> int:
        """End the window; nsys writes its report on its own."""
        if self._begun:
            torch.cuda.synchronize()
        self.stop_and_drop()
        return 0

    def stop_and_drop(self) -> None:
        """End the window, if it has begun; nsys writes what it has."""
        if self._begun:
            self._begun = False
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


ProfileRecorder = TorchRecorder | NsysRecorder
"""Records one profile. All calls come at step boundaries, in the thread of the steps."""


def make_recorder(tool: ProfileTool, trace: Path, nsys: str | None) -> ProfileRecorder:
    """Return what records a profile; raises ValueError if this rank has no such tool.

    `nsys` is the value of `NSYS_VARIABLE`.
    """
    if tool is ProfileTool.torch:
        return TorchRecorder(trace)
    if nsys is None:
        raise ValueError("the rank was not started below nsys (observe.profile.tool=nsys)")
    if not nsys.startswith("/"):
        raise ValueError(nsys)
    if not torch.cuda.is_available():
        raise ValueError("nsys records windows of GPU programs, but the rank sees no GPU")
    return NsysRecorder(Path(nsys))
