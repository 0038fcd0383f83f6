"""Promises of observe.gpu_choice: a run has the GPUs it was given, and unknown is never all."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.observe.gpu_choice import GPUS_ASKED, WHOLE_NODE, read_gpus_given_to_run

UUIDS = [f"GPU-{number}aaa-bbb" for number in range(8)]
IN_A_JOB = {"SLURM_JOB_ID": "7"}
ALL = list(range(8))


def chosen(environ: dict[str, str], count: int = 8) -> list[int]:
    """Return which of so many GPUs a run with these variables has."""
    choice = read_gpus_given_to_run(environ)
    return [index for index in range(count) if choice.includes_gpu(index, UUIDS[index], count)]


@pytest.mark.parametrize(
    ("environ", "count", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 8, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, 8, [4, 5]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4-5"}, 8, [4, 5]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, 2, [0, 1]),
        ({"SLURM_STEP_GPUS": "6", "SLURM_JOB_GPUS": "1"}, 8, [6]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3aaa,gpu-5AAA-bbb"}, 8, [3, 5]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 8, [0]),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "void"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "x;y"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_STEP_GPUS": "2"}, 8, [2]),
        ({"ROCR_VISIBLE_DEVICES": "5"}, 8, [5]),
        ({"HIP_VISIBLE_DEVICES": "1"}, 8, [1]),
        ({"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "4,6"}, 8, [6]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3"}, 8, [2, 3]),
        ({"GPU_DEVICE_ORDINAL": "3"}, 8, [3]),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2"}, 8, [1, 2]),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, 8, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "7"}, 8, [7]),
        ({"NVIDIA_VISIBLE_DEVICES": "all", **IN_A_JOB}, 8, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 2, [0, 1]),
        ({}, 8, ALL),
        (IN_A_JOB, 8, []),
        ({GPUS_ASKED: "0"}, 8, []),
        ({GPUS_ASKED: "0", "CUDA_VISIBLE_DEVICES": "0", **IN_A_JOB}, 8, []),
        ({GPUS_ASKED: "0", "SLURM_JOB_GPUS": "3", **IN_A_JOB}, 8, [3]),
        ({GPUS_ASKED: "4", **IN_A_JOB}, 4, [0, 1, 2, 3]),
        ({GPUS_ASKED: "4", **IN_A_JOB}, 8, []),
        ({GPUS_ASKED: WHOLE_NODE, "SLURM_STEP_GPUS": "0", **IN_A_JOB}, 8, ALL),
        ({GPUS_ASKED: WHOLE_NODE, "SLURM_STEP_GPUS": "0-3", "HPCKIT_SLOT_GPUS": "1", **IN_A_JOB}, 8, [1]),
    ],
)
def test_run_has_the_gpus_it_was_given(environ: dict[str, str], count: int, expected: list[int]) -> None:
    """By UUID, by Slurm's numbers, by what is visible; where nothing says so, none in a job."""
    assert chosen(environ, count) == expected


def test_mig_devices_of_a_run_name_no_gpu_that_is_lost() -> None:
    """Only the driver knows which GPU has them; one that does not answer may be another job's."""
    choice = read_gpus_given_to_run({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2", **IN_A_JOB})
    assert choice.includes_mig_device("MIG-1")
    assert not choice.includes_mig_device("MIG-3")
    assert choice.may_include_gpu(0, 8, 0)
    assert not choice.may_include_gpu(1, 8, 1)


@given(st.sets(st.integers(0, 7), min_size=1))
def test_slurms_numbers_are_taken_as_they_are(numbers: set[int]) -> None:
    """Any set of GPUs that Slurm names is the one that is measured."""
    text = ",".join(map(str, sorted(numbers)))
    assert set(chosen({"SLURM_JOB_GPUS": text})) == numbers


LISTS = [None, "", "NoDevFiles", "-1", "void", "none", "0", "1,2", "GPU-4aaa", "rubbish", "99"]


@pytest.mark.parametrize("asked", [None, "", "0", "1", "2", "8"])
@pytest.mark.parametrize("by_slurm", [None, "", "(null)", "5", "2-3"])
def test_no_gpu_is_counted_that_was_not_given(asked: str | None, by_slurm: str | None) -> None:
    """In a job, over what was asked for, what variables say and how many GPUs are visible."""
    for cuda, rocr, container, count in itertools.product(
        LISTS, [None, "", "3"], [None, "all", "void", "6"], range(9)
    ):
        named = {
            "CUDA_VISIBLE_DEVICES": cuda,
            "ROCR_VISIBLE_DEVICES": rocr,
            "NVIDIA_VISIBLE_DEVICES": container,
            "SLURM_STEP_GPUS": by_slurm,
            GPUS_ASKED: asked,
        }
        environ = {name: text for name, text in named.items() if text is not None} | IN_A_JOB
        found = set(chosen(environ, count))
        words = ",".join(text for name, text in named.items() if text and name != GPUS_ASKED)
        said = {int(number) for number in re.findall(r"(?<!\A-)(?<!,-)\d+", words)}
        wanted = int(asked or 0)
        no_others = count <= max(len(said), wanted)  # Slurm hides those of other jobs
        assert found <= said or no_others, (environ, count)
        if not said and not wanted:
            assert not found, (environ, count)
