"""Promises about what measures a device: CPUs are compared with CPUs of their own model alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiers import thorough

from hpckit.model.environment.health import DeviceSpeed
from hpckit.runtime.preflight.device_speed import measure_device, read_cpu_model
from hpckit.runtime.preflight.speeds import MARK, end_measurement_and_read_speed, start_device_measurement

INTEL = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold 6148\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"


@pytest.mark.parametrize(
    ("text", "model"),
    [(INTEL, "Intel(R) Xeon(R) Gold 6148"), (ARM, "0x41 0xd4f"), ("", "cpu"), (None, "cpu")],
)
def test_cpus_are_named_by_their_model(tmp_path: Path, text: str | None, model: str) -> None:
    """As the kernel tells it; nothing is an error."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert read_cpu_model(tmp_path / "cpuinfo") == model


def test_measured_cpus_have_the_name_of_their_model() -> None:
    """A healthy older CPU is slower than a newer one, and no finding."""
    found = measure_device("cpu", 1, 0.1)
    assert (found.device, found.name) == ("cpu", read_cpu_model())


def run_devices(folder: Path, count: int, *, of: int, limit_s: float) -> list[DeviceSpeed]:
    """Measure so many devices of a node that is said to have `of` of them."""
    deadline = time.monotonic() + limit_s
    store = [str(of), str(folder / "store")]
    started = [
        start_device_measurement(os.environ, ["cpu", "1", "4.0", str(place), *store])
        for place in range(count)
    ]
    return [end_measurement_and_read_speed("cpu", process, deadline) for process in started]


@thorough
@pytest.mark.training
def test_devices_of_a_node_add_together(tmp_path: Path) -> None:
    """Two processes meet in a file, and each tells the bandwidth of their sum."""
    for found in run_devices(tmp_path, 2, of=2, limit_s=60):
        assert found.all_reduce_bytes_s is not None
        assert found.all_reduce_bytes_s > 0
        assert found.checksum is not None
        assert not found.problem


@pytest.mark.training
def test_device_whose_neighbour_does_not_come_tells_its_own_speed(tmp_path: Path) -> None:
    """A process that hangs costs the sum, and no more of the answer of the others."""
    (found,) = run_devices(tmp_path, 1, of=2, limit_s=60)
    assert found.all_reduce_bytes_s is None
    assert found.checksum is not None
    assert found.matmul_flops is not None


def test_answer_that_cannot_be_read_is_told_as_that() -> None:
    """Not by the exit code of a process that ended well."""
    words = [sys.executable, "-c", f"print({MARK!r} + '{{}}')"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, encoding="utf-8")
    found = end_measurement_and_read_speed("cpu", process, time.monotonic() + 60)
    assert "its answer cannot be read" in found.problem
