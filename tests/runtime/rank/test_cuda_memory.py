"""Promises of runtime.rank.cuda_memory, with a torch.cuda that is a fake: no GPU is needed."""

from __future__ import annotations

import json
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from hpckit.model.failure import Cause, RankExit
from hpckit.model.plain import from_plain
from hpckit.model.rank import RankInfo, RankSource
from hpckit.planning.recovery.classify import classify_rank_exit
from hpckit.record.layout import AttemptPaths, RoundPaths
from hpckit.record.store import make_private_folder
from hpckit.runtime.rank import cuda_memory
from hpckit.runtime.rank.cuda_memory import MOST_SNAPSHOTS, CudaMemory
from hpckit.runtime.rank.process import RankProcess

GIB = 10**9
SNAPSHOT = {"segments": [{"address": 1}], "device_traces": [[]]}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let torch.cuda answer as a GPU with 80 GB would; return how its history was asked for."""
    asked: list[dict[str, Any]] = []
    answers: dict[str, Any] = {
        "mem_get_info": lambda _: (GIB, 80 * GIB),
        "memory_allocated": lambda _: 70 * GIB,
        "max_memory_allocated": lambda _: 72 * GIB,
        "memory_reserved": lambda _: 78 * GIB,
        "max_memory_reserved": lambda _: 79 * GIB,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: asked.append(given))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    return asked


def memory(folder: Path, *, rank: int = 3, snapshot: bool = False, device: str = "cuda:0") -> CudaMemory:
    """Return a rank's."""
    made = CudaMemory(paths=RoundPaths(folder), rank=rank, device=torch.device(device), snapshot=snapshot)
    made.record_allocations()
    return made


def out_of_memory() -> Exception:
    """Return what torch raises."""
    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")


def test_figures_are_written_and_named(tmp_path: Path, cuda: list[Any]) -> None:
    """Without a history; and what to set to have one."""
    words = memory(tmp_path).record_out_of_memory(out_of_memory())
    assert words == (
        "GPU memory: of 80.0 GB, this rank had allocated 70.0 GB and reserved 78.0 GB; 1.0 GB were "
        "free (observe.memory_snapshot=true shows what for)"
    )
    figures = json.loads(RoundPaths(tmp_path).memory_report(3).read_text())
    assert figures["most_allocated_bytes"] == 72 * GIB
    assert not RoundPaths(tmp_path).memory_snapshot(3).exists()
    assert cuda == []


def test_snapshot_is_written_where_it_was_asked_for(tmp_path: Path, cuda: list[Any]) -> None:
    """Private, whole, as torch writes it; the failure names the file."""
    words = memory(tmp_path, snapshot=True).record_out_of_memory(out_of_memory())
    assert cuda == [{"max_entries": cuda_memory.REMEMBERED, "stacks": "python"}]
    file = RoundPaths(tmp_path).memory_snapshot(3)
    assert words.endswith(f"pytorch.org/memory_viz shows what for: {file}")
    assert pickle.loads(file.read_bytes()) == SNAPSHOT  # noqa: S301  # written here
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.usefixtures("cuda")
def test_error_that_came_of_it_counts_too(tmp_path: Path) -> None:
    """Trainers wrap it."""
    error = RuntimeError("step failed")
    error.__cause__ = out_of_memory()
    assert memory(tmp_path).record_out_of_memory(error).startswith("GPU memory: ")


@pytest.mark.parametrize(("device", "error"), [("cpu", out_of_memory()), ("cuda:0", ValueError("no"))])
def test_nothing_happens_on_cpus_and_at_other_errors(
    tmp_path: Path, cuda: list[Any], device: str, error: Exception
) -> None:
    """No file, no words, and no history on a CPU."""
    assert memory(tmp_path, snapshot=device == "cpu", device=device).record_out_of_memory(error) == ""
    assert list(tmp_path.iterdir()) == []
    assert cuda == []


@pytest.mark.usefixtures("cuda")
def test_only_a_few_ranks_write_snapshots(tmp_path: Path) -> None:
    """All of them run out of memory at once, and all write their figures."""
    for rank in range(MOST_SNAPSHOTS + 2):
        words = memory(tmp_path, rank=rank, snapshot=True).record_out_of_memory(out_of_memory())
    assert "other ranks have written snapshots" in words
    assert len(list(tmp_path.glob("*.memory.pickle"))) == MOST_SNAPSHOTS
    assert len(list(tmp_path.glob("*.memory.json"))) == MOST_SNAPSHOTS + 2


@pytest.mark.usefixtures("cuda")
def test_snapshot_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be larger leaves nothing."""
    monkeypatch.setattr(cuda_memory, "MOST_BYTES", 20)
    words = memory(tmp_path, snapshot=True).record_out_of_memory(out_of_memory())
    assert "would be larger" in words
    assert not list(tmp_path.glob("*pickle*"))


@pytest.mark.usefixtures("cuda")
def test_gpu_that_answers_nothing_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Neither when the history begins nor when memory has run out."""

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fails)
    found = memory(tmp_path, snapshot=True).record_out_of_memory(out_of_memory())
    assert found == "its memory usage is unknown: RuntimeError"
    assert "is not recorded" in capsys.readouterr().err


@pytest.mark.usefixtures("cuda")
def test_exit_record_and_log_say_how_memory_was_used(tmp_path: Path, capsys: Any) -> None:
    """The supervisor makes the failure of it that `status` shows; its cause stays what it was."""
    environ = {"HPCKIT_ATTEMPT_DIR": str(tmp_path), "HPCKIT_ROUND": "0"}
    info = RankInfo(
        rank=3,
        world_size=4,
        local_rank=3,
        local_world_size=4,
        node_rank=0,
        num_nodes=1,
        source=RankSource.agent,
        node="n1",
    )
    paths = AttemptPaths(tmp_path).round(0)
    make_private_folder(paths.folder)
    rank = RankProcess(environ=environ, info=info)
    rank.memory = memory(paths.folder)
    rank.record_exception(out_of_memory())
    record = from_plain(RankExit, json.loads(paths.rank_exception_file(3).read_text()))
    first, second = str(record.message).splitlines()
    assert first == "CUDA out of memory. Tried to allocate 9.00 GiB"
    assert second.startswith("GPU memory: of 80.0 GB")
    assert classify_rank_exit(record) is Cause.cuda_oom
    assert second in capsys.readouterr().err
