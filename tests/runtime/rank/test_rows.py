"""What `run.log` writes into a row besides the metrics."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from hpckit.runtime.environ import rank_info
from hpckit.runtime.rank.config import Config
from hpckit.runtime.rank.run import Run

ALONE = rank_info({})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return rank 0 of a world of one, in its third round."""
    return Run(
        info=ALONE,
        config=Config(),
        device=torch.device("cpu"),
        folder=tmp_path,
        attempt_folder=tmp_path,
        checkpoint_dir=tmp_path,
        code_folder=tmp_path,
        project_folder=tmp_path,
        logger=logging.getLogger("test"),
        round=2,
    )


def test_row_names_its_round(run: Run, tmp_path: Path) -> None:
    """Rows of several rounds stand in one file, and each says which one wrote it."""
    run.log(step=3, loss=0.5)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert list(row) == ["step", "at", "round", "loss"]
    assert (row["step"], row["round"]) == (3, 2)


def test_row_with_a_step_of_ones_own_names_that_of_the_run(run: Run, tmp_path: Path) -> None:
    """So that a restart undoes what it did again, whatever the user counts."""
    for step in run.steps(2):
        run.log(loss=0.5)
        run.log(step=(step + 1) * 64, seen=1)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row.get("run_step")) for row in rows] == [
        *((0, None), (64, 0), (1, None), (128, 1))
    ]


@pytest.mark.parametrize("name", ["at", "round", "run_step"])
def test_name_that_a_row_has_already_is_refused(run: Run, name: str) -> None:
    """A metric cannot take the place of what hpckit writes itself."""
    with pytest.raises(TypeError, match=f"run.log\\({name}=…\\): every row has its own {name}"):
        run.log(**{name: 1})
