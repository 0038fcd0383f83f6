"""The files of public clusters that hpckit ships can be composed, and say what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "conf" / "cluster" / "examples"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_example_of_a_cluster_composes_and_tells_that_it_was_not_run(name: str, shell: Any) -> None:
    """With an account it is rendered; its head says from what it was written, and that nobody ran it."""
    words = (f"cluster=examples/{name}", "cluster.account=mine", "experiment=digits", "resources=one_gpu")
    said = shell("launch", *words, "--cfg", "cluster")
    assert said.code == 0, said.err
    assert "account: mine" in said.out
    head = (EXAMPLES / f"{name}.yaml").read_text().replace("\n# ", " ")
    assert "public" in head
    assert "has not been run" in head


def test_there_are_three_examples_of_clusters() -> None:
    """One of AMD's GPUs, one with types and slices, one without partitions."""
    assert {path.stem for path in EXAMPLES.iterdir()} == {"lumi", "mahti", "perlmutter"}


def test_slice_of_mahti_is_asked_for_as_its_guide_does(shell: Any) -> None:
    """A user says `1g.5gb`, and Slurm is told the site's own name, by --gres."""
    words = ("cluster=examples/mahti", "cluster.account=mine", "experiment=digits", "resources=one_gpu")
    more = ("resources.partition=gpusmall", "resources.gpu_type=1g.5gb", "--dry-run")
    said = shell("launch", *words, *more)
    assert "#SBATCH --gres=gpu:a100_1g.5gb:1" in said.out, said.err
    assert "--gpus-per-node" not in said.out
