"""Promises of observe.gpu_choice: a job measures its own GPUs, and no others that it can see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.observe.gpu_choice import gpu_choice

UUIDS = [f"GPU-{number}aaa-bbb" for number in range(8)]


def chosen(count: int = 8, **environ: str) -> list[int]:
    """Return which of so many GPUs a job with these variables measures."""
    choice = gpu_choice(environ)
    return [index for index in range(count) if choice.includes(index, UUIDS[index], count)]


@pytest.mark.parametrize(
    ("environ", "count", "expected"),
    [
        ({}, 8, list(range(8))),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 8, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, 8, [4, 5]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4-5"}, 8, [4, 5]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, 2, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3aaa,gpu-5AAA-bbb"}, 8, [3, 5]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, 8, list(range(8))),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "x;y"}, 8, list(range(8))),
    ],
)
def test_job_measures_its_own_gpus(
    environ: dict[str, str], count: int, expected: list[int]
) -> None:
    """By UUID, by Slurm's numbers, by CUDA's; where Slurm hides the others, all that is visible."""
    assert chosen(count, **environ) == expected


@given(st.sets(st.integers(0, 7), min_size=1))
def test_slurms_numbers_are_taken_as_they_are(numbers: set[int]) -> None:
    """Any set of GPUs that Slurm names is the one that is measured."""
    text = ",".join(map(str, sorted(numbers)))
    assert set(chosen(8, SLURM_JOB_GPUS=text)) == numbers
