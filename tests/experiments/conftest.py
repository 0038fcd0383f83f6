"""Trains the shipped experiments on real process groups, small and without a launch."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import until

HERE = Path(__file__).parent
CONF = HERE.parents[1] / "conf" / "experiment"

Metrics = dict[str, list[tuple[int, float]]]
"""By name, what was logged: step and value, in order."""


@dataclass(kw_only=True)
class Trainer:
    """Trains experiments; what was trained once with the same settings is not trained again."""

    folder: Path
    done: dict[str, Metrics] = field(default_factory=dict)

    def train(self, name: str, ranks: int, **changes: Any) -> Metrics:
        """Return what an experiment logged with these ranks and changes to its settings."""
        key = json.dumps([name, ranks, changes])
        if key not in self.done:
            self.done[key] = self.train_again(name, ranks, **changes)
        return self.done[key]

    def train_again(self, name: str, ranks: int, **changes: Any) -> Metrics:
        """Do the same, whether it was done before or not."""
        config = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
        config |= {"seed": 0, "resources": {"cpus_per_task": 1}, **changes}
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        start(config, ranks, folder)
        return read_metrics(folder / "metrics.jsonl")


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Hand out the one trainer of this session."""
    return Trainer(folder=tmp_path_factory.mktemp("experiments"))


def start(config: dict[str, Any], ranks: int, folder: Path) -> None:
    """Train to the end in `folder`; a training that fails shows what it printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, str(HERE / "one_rank.py"), config["entry_point"], json.dumps(config)]
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "said").open("w") as said, ExitStack() as ended:
        processes = []
        for rank in range(ranks):
            environ = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(words, cwd=folder, env=environ, stdout=said, stderr=said)
            processes.append(ended.enter_context(process))
            ended.callback(process.kill)
        # One that fails leaves the others waiting for it.
        until(lambda: any(one.poll() for one in processes) or all_left(processes))
    assert [one.returncode for one in processes] == [0] * ranks, (folder / "said").read_text()


def all_left(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether all of them have ended."""
    return all(one.poll() is not None for one in processes)


def read_metrics(file: Path) -> Metrics:
    """Read what rank 0 logged."""
    metrics: Metrics = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name in record.keys() - {"step", "at"}:
            metrics.setdefault(name, []).append((record["step"], record[name]))
    return metrics
