"""Promises of what is said of a GPU's PCIe link while data is under way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpckit.testing.nvml.fake_nvml import FakeNvml

ASK = """
import sys
from hpckit.observe.nvml.backend import read_pcie_link
link = read_pcie_link(sys.argv[1])
if link is not None:
    link = link.pcie_generation, link.pcie_generation_max, link.pcie_width, link.pcie_width_max
print(link)
"""


def asked(folder: Path, uuid: str) -> str:
    """Return what a process of its own says of a GPU, as NVML is loaded once for each."""
    variables = {"LD_LIBRARY_PATH": str(folder), "HPCKIT_FAKE_NVML": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, uuid],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_link_is_read_by_uuid(tmp_path: Path) -> None:
    """Generation and lanes, as they are now and at most; what is unknown is None."""
    fake = FakeNvml(tmp_path)
    fake.profile("h100", gpus=2)
    fake.change({"g1.pcie_generation_now": 3, "g1.pcie_width_now": 8})
    fake.build()
    slow = "(3, 5, 8, 16)"
    assert asked(tmp_path, fake.uuid(1)) == slow
    assert asked(tmp_path, fake.uuid(0)) == "(5, 5, 16, 16)"
    assert asked(tmp_path, "GPU-unknown") == "None"
    assert asked(tmp_path / "without a driver", fake.uuid(0)) == "None"
