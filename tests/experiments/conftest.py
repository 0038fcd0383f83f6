"""Trains the shipped experiments on real process groups, small and without a launch."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from rank_worlds import start_ranks

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
    words = (config["entry_point"], json.dumps(config))
    ends = start_ranks(HERE / "one_rank.py", ranks, *words, folder=folder)
    assert all(end.code == 0 for end in ends), "\n".join(end.output for end in ends)


def read_metrics(file: Path) -> Metrics:
    """Read what rank 0 logged."""
    metrics: Metrics = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name in record.keys() - {"step", "at"}:
            metrics.setdefault(name, []).append((record["step"], record[name]))
    return metrics
