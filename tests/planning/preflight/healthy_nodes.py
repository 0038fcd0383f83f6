"""Nodes of two GPUs each that nothing is wrong with, for tests to damage."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hpckit.model.environment.facts import (
    DriverFacts,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
    GpuFacts,
    PythonFacts,
    TorchFacts,
)
from hpckit.model.environment.health import DeviceSpeed, NodeHealth
from hpckit.model.launch import LaunchConfig, Resources

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GIB = 2**30
SETTINGS = LaunchConfig(
    entry_point="train:main", resources=Resources(nodes=4, tasks_per_node=2, gpus_per_node=2, mem_gb=100)
)
H100 = GpuFacts(
    uuid="GPU-0",
    index=0,
    name="H100",
    memory_bytes=80 * GIB,
    memory_used_bytes=0,
    processes=(),
    ecc_uncorrected=0,
    pcie_width=16,
    pcie_width_max=16,
    nvlinks=18,
)
GPUS = (H100, replace(H100, uuid="GPU-1", index=1))
FACTS = EnvironmentFacts(
    host="n1",
    at=NOON,
    system="Linux",
    kernel="6",
    memory_bytes=200 * GIB,
    python=PythonFacts(version="3.11", executable="/python", hpckit="1"),
    torch=TorchFacts(installed=True, version="2.9", cuda="13.0", nccl="2.28", architectures=("sm_90",)),
    driver=DriverFacts(version="580.65", cuda="13.0", gpus=(GpuFacts(name="H100", capability="9.0"),) * 2),
    file_systems=(
        FileSystemFacts(
            role=FolderRole.shared_memory,
            path="/dev/shm",  # noqa: S108  # a name in a fact
            size_bytes=100 * GIB,
            free_bytes=100 * GIB,
        ),
    ),
)
FINE = NodeHealth(environment=FACTS, gpus=GPUS, write_s=0.01, available_bytes=190 * GIB)
LINK = GpuFacts(name="", pcie_generation=5, pcie_generation_max=5, pcie_width=16, pcie_width_max=16)
SPEED = DeviceSpeed(
    device="GPU-0",
    name="H100",
    matmul_flops=6e14,
    checksum="a",
    repeats=True,
    copy_bytes_s=3e12,
    all_reduce_bytes_s=4e11,
    pcie=LINK,
)
