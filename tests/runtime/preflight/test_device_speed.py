"""Promises about what measures a device: CPUs are compared with CPUs of their own model alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.runtime.preflight.device_speed import cpu_model, measure

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
    assert cpu_model(tmp_path / "cpuinfo") == model


def test_measured_cpus_have_the_name_of_their_model() -> None:
    """A healthy older CPU is slower than a newer one, and no finding."""
    found = measure("cpu", 1, 0.1)
    assert (found.device, found.name) == ("cpu", cpu_model())
