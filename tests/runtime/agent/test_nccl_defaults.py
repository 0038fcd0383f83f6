"""Promises of the agent's defaults for NCCL: what is kept of a hang, and whose word wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.model.launch import DeviceKind, LaunchConfig, Resources, Runtime
from hpckit.record.layout import RoundPaths
from hpckit.runtime.agent import rank_starter
from hpckit.runtime.agent.rank_starter import add_nccl_defaults

PATHS = RoundPaths(Path("/run/0"))
ON_GPUS = LaunchConfig(resources=Resources(gpus_per_node=8))


@pytest.fixture(autouse=True)
def _torch_2_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_starter, "_read_torch_version", lambda: (2, 9))


def test_gpu_ranks_keep_their_latest_collectives_and_write_them_at_a_timeout() -> None:
    """Each rank has a file of its own in the round's folder; rank 0 also says which network."""
    first = add_nccl_defaults({"A": "1"}, ON_GPUS, PATHS, 0)
    assert first["A"] == "1"
    assert first["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert first["TORCH_FR_DUMP_TEMP_FILE"] == "/run/0/nccl-trace-rank-"
    assert first["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert first["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert (first["NCCL_DEBUG"], first["NCCL_DEBUG_FILE"]) == ("INFO", str(PATHS.nccl_log))
    other = add_nccl_defaults({}, ON_GPUS, PATHS, 1)
    assert "NCCL_DEBUG" not in other
    assert other["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_what_the_user_sets_wins() -> None:
    """Own values stay, and who reads NCCL's lines finds them where they were."""
    mine = {"TORCH_FR_BUFFER_SIZE": "7", "NCCL_DEBUG": "WARN"}
    found = add_nccl_defaults(mine, ON_GPUS, PATHS, 0)
    assert {name: found[name] for name in mine} == mine
    assert not {"NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & found.keys()


@pytest.mark.parametrize(
    "settings",
    [
        LaunchConfig(),
        LaunchConfig(resources=Resources(gpus_per_node=8), runtime=Runtime(device=DeviceKind.cpu)),
    ],
)
def test_a_cpu_rank_that_is_alone_gets_nothing(settings: LaunchConfig) -> None:
    """It has the environment that it would have anyway."""
    assert add_nccl_defaults({"A": "1"}, settings, PATHS, 0) == {"A": "1"}


def test_cpu_ranks_keep_their_latest_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a hang names the missing rank; gloo records with newer torch only."""
    settings = LaunchConfig(resources=Resources(tasks_per_node=2))
    assert add_nccl_defaults({}, settings, PATHS, 0) == {"TORCH_FR_BUFFER_SIZE": "2000"}
    monkeypatch.setattr(rank_starter, "_read_torch_version", lambda: (2, 6))
    assert add_nccl_defaults({}, settings, PATHS, 0) == {}


def test_older_torch_is_asked_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9 the same variables had other names."""
    monkeypatch.setattr(rank_starter, "_read_torch_version", lambda: (2, 6))
    found = add_nccl_defaults({}, ON_GPUS, PATHS, 3)
    assert found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"].endswith("nccl-trace-rank-")
    assert not any(name.startswith("TORCH_FR") for name in found)
