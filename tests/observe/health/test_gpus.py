"""Promises of what NVML tells of the job's GPUs before a run trains on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpckit.testing.nvml.fake_nvml import FakeNvml

ASK = """
import json, os
from hpckit.observe.health.gpus import read_gpus
print(json.dumps([(one.name, one.power_limit_w, one.nvlinks) for one in read_gpus(os.environ)]))
"""


def test_power_limit_of_each_gpu_is_read(tmp_path: Path) -> None:
    """In watts, as the driver enforces it now; of a GPU that was capped, the cap."""
    fake = FakeNvml(tmp_path)
    fake.profile("h100", gpus=2)
    fake.change({"g1.limit_w": 450})
    fake.build()
    # NVML is loaded once for each process.
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "HPCKIT_FAKE_NVML": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert [limit for _, limit, _ in json.loads(done.stdout)] == [700.0, 450.0]
