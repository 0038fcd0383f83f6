"""What runs of this machine pay for, in whole: real launches on a fake NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpckit.testing.nvml.fake_nvml import FakeNvml

LAUNCH = (
    *("launch", "--wait", "cluster=local", "cluster.price_per_gpu_hour=3600"),
    *("observe.interval_s=0.5", "observe.row_s=1"),
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a shell on a machine with two busy GPUs."""
    fake = FakeNvml(tmp_path)
    fake.build()
    fake.profile("h100", gpus=2)
    for gpu in (0, 1):
        fake.load(gpu, {0: 0.9})
    hidden = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")
    left = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**left, **fake.environ, "HPCKIT_OUTPUTS": str(tmp_path / "outputs")}


def start(environ: dict[str, str], folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `hpckit WORDS`."""
    line = [sys.executable, "-m", "hpckit", *words]
    return subprocess.Popen(line, cwd=folder, env=environ, stdout=subprocess.DEVNULL)


def seen(environ: dict[str, str], folder: Path, name: str) -> dict[str, Any]:
    """Return what status says of the one run of a launch, and the run's log as `log`."""
    line = [sys.executable, "-m", "hpckit", "status", name, "--json"]
    told = subprocess.run(line, cwd=folder, env=environ, capture_output=True, check=True)
    (run,) = json.loads(told.stdout)["runs"]
    logs = sorted((folder / "outputs").glob(f"{name}-*/runs/00000/attempts/001/rounds/000/rank-*.log"))
    return {**run, "log": "".join(log.read_text() for log in logs)}


def test_run_that_asks_for_no_gpu_has_none(environ: dict[str, str], tmp_path: Path) -> None:
    """It sees none, pays for none, and no verdict is about GPUs of others."""
    words = (*LAUNCH, "resources=cpu", "name=cpuonly", "--")
    program = ("bash", "-c", "echo shown=[$CUDA_VISIBLE_DEVICES]; sleep 4")
    assert start(environ, tmp_path, (*words, *program)).wait(120) == 0
    run = seen(environ, tmp_path, "cpuonly")
    assert run["energy"] is None
    assert run["telemetry"]["gpu_utilization"] is None
    assert not [one for one in run["verdicts"] if "bound" in one["kind"] or "gpu" in one["kind"]]
    assert "shown=[]" in run["log"]


def test_code_that_wants_a_gpu_is_told_that_there_is_none(environ: dict[str, str], tmp_path: Path) -> None:
    """Torch says only that none is available; here the words that it has with CUDA."""
    (tmp_path / "ask.py").write_text(
        "def train(config, run):\n"
        "    assert run.device.type == 'cpu'\n"
        "    raise RuntimeError('No CUDA GPUs are available')\n"
    )
    words = ("experiment=function", "entry_point=ask:train", "resources=cpu", "name=asks")
    start(environ, tmp_path, (*LAUNCH, "recovery=never", *words)).wait(120)
    failure = seen(environ, tmp_path, "asks")["failure"]
    assert "the run was given no GPU: ask for a GPU (resources=one_gpu)" in str(failure)


def test_launches_side_by_side_pay_for_a_gpu_once(environ: dict[str, str], tmp_path: Path) -> None:
    """Each has its part, for as long as both have it; GPUs that one has alone are its own."""
    sleeping = ("--", "sleep", "8")
    both = [
        start(environ, tmp_path, (*LAUNCH, "name=all", *sleeping)),
        start(environ, tmp_path, (*LAUNCH, "name=one", "+env.CUDA_VISIBLE_DEVICES='1'", *sleeping)),
    ]
    assert [one.wait(180) for one in both] == [0, 0]
    found = {name: seen(environ, tmp_path, name) for name in ("all", "one")}
    paid = {name: run["energy"]["price"] for name, run in found.items()}
    lasted = {name: run["goodput"]["productive_s"] for name, run in found.items()}
    assert paid["one"] < 0.9 * lasted["one"], "it shared its only GPU"
    assert lasted["all"] < paid["all"] < 1.9 * lasted["all"], "it had the other one alone"
