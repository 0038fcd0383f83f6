"""Trains the shipped experiments on real process groups, small and without a launch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
CONF = HERE.parents[1] / "conf" / "experiment"

Metrics = dict[str, list[tuple[int, float]]]
"""By name, what was logged: step and value, in order."""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Metrics]:
    """Return a function that trains an experiment and returns what it logged."""

    def run(name: str, ranks: int, **changes: Any) -> Metrics:
        config = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
        config |= {"seed": 0, "resources": {"cpus_per_task": 1}, **changes}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        start(config, ranks, folder)
        return read_metrics(folder / "metrics.jsonl")

    return run


def start(config: dict[str, Any], ranks: int, folder: Path) -> None:
    """Train to the end in `folder`; a training that fails shows what it printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", str(HERE / "one_rank.py")),
            *(config["entry_point"], json.dumps(config)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def read_metrics(file: Path) -> Metrics:
    """Read what rank 0 logged."""
    metrics: Metrics = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name in record.keys() - {"step", "at"}:
            metrics.setdefault(name, []).append((record["step"], record[name]))
    return metrics
