"""Hands these tests a node with fake GPUs, behind the real nvidia-ml-py."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.testing.nvml.fake_nvml import STATE_VARIABLE, FakeNvml


@pytest.fixture(scope="session")
def _fake_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the fake, and load it into this process."""
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.build()
    fake.load_here()


@pytest.fixture
def nvml(_fake_library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Return a fake without a driver: its state is this test's own."""
    fake = FakeNvml(tmp_path)
    monkeypatch.setenv(STATE_VARIABLE, str(fake.file))
    return fake
