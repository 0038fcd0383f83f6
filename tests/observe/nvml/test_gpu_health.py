"""Promises of what NVML tells of the job's GPUs before a run trains on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpckit.testing.nvml.fake_nvml import FakeNvml

ASK = """
import json, os
from hpckit.observe.gpus import read_driver_and_gpus
found = read_driver_and_gpus(os.environ, lost=True).gpus
print(json.dumps([(one.name, one.power_limit_w, one.nvlinks) for one in found]))
"""


def asked(folder: Path, **variables: str) -> list[list[Any]]:
    """Return what a job with these variables is told of its GPUs; each asks in its own process."""
    fake = {"LD_LIBRARY_PATH": str(folder), "HPCKIT_FAKE_NVML": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK],
        env={**os.environ, **fake, "SLURM_JOB_ID": "7", **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def test_power_limit_of_each_gpu_is_read(tmp_path: Path) -> None:
    """In watts, as the driver enforces it now; of a GPU that was capped, the cap."""
    fake = FakeNvml(tmp_path)
    fake.profile("h100", gpus=2)
    fake.change({"g1.limit_w": 450})
    fake.build()
    assert [limit for _, limit, _ in asked(tmp_path, SLURM_JOB_GPUS="0,1")] == [700.0, 450.0]


def test_sick_gpu_of_another_job_condemns_no_node(tmp_path: Path) -> None:
    """A run that was given no GPU has none that could be lost; the GPU's own run hears of it."""
    fake = FakeNvml(tmp_path)
    fake.profile("h100", gpus=2)
    fake.build()
    fake.lose(1)
    assert len(asked(tmp_path, SLURM_JOB_GPUS="0,1")) == 2
    assert asked(tmp_path) == []
    assert asked(tmp_path, HPCKIT_GPUS_ASKED="0", CUDA_VISIBLE_DEVICES="") == []
