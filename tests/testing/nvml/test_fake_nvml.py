"""Promises of testing.nvml: a library that other processes find as the driver's own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from waiting import run_to_end

from hpckit.testing.nvml.fake_nvml import FakeNvml

ASK = """
import json, pynvml
pynvml.nvmlInit()
one = pynvml.nvmlDeviceGetHandleByIndex(1)
found = [pynvml.nvmlDeviceGetName(one), pynvml.nvmlDeviceGetPowerUsage(one) / 1000]
try:
    pynvml.nvmlDeviceGetMarginTemperature(one)
except pynvml.NVMLError as error:
    found.append(error.value)
print(json.dumps(found))
"""
SAMPLE = """
import json, sys
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.backend import open_nvml_backend
before = "pynvml" in sys.modules
backend, note = open_nvml_backend(gpm=True, choice=GpuChoice(whole_node=True))
print(json.dumps([before, backend is None, note]))
"""


def ask(fake: FakeNvml, code: str) -> list[object]:
    """Run code in a process that finds the fake."""
    done = run_to_end([sys.executable, "-c", code], env={**os.environ, **fake.environ}, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_a_process_finds_the_fake_as_its_driver(tmp_path: Path) -> None:
    """The environment is all that it takes; a function of newer drivers may be missing."""
    fake = FakeNvml(tmp_path)
    fake.build(without=["nvmlDeviceGetMarginTemperature"])
    fake.profile("h200", gpus=2)
    fake.load(1, {0: 0.5})
    assert ask(fake, ASK) == ["NVIDIA H200", 387.5, 13]


def test_a_node_without_the_library_has_no_gpus(tmp_path: Path) -> None:
    """Most login nodes: no error, no remark, and the bindings are not imported before."""
    fake = FakeNvml(tmp_path)
    before, absent, note = ask(fake, SAMPLE)
    assert (before, absent, note) == (False, True, "")
