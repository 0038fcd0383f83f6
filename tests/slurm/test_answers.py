"""What `submit` makes of sbatch's answer if a site's wrapper adds words to it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerRefusedError
from hpckit.slurm.clusters import parse_sbatch_answer
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import find_jobs_by_name

Answer = Callable[[str], tuple[str, tuple[str, ...]]]


@pytest.fixture
def answer(
    send: Callable[..., str], plan_of_one_job: Callable[..., Any], fake_slurm: Any, tmp_path: Path
) -> Answer:
    """Return a function that submits through a wrapper; it returns the answer, and the truth.

    In the wrapper `$1` is what sbatch says, and job 1 is another one of the user's.
    """
    name = plan_of_one_job(tmp_path).jobs[0].name
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in fake_slurm.bin_dir.iterdir():
        (programs / program.name).symlink_to(program)
    commands = SlurmCommands(bin_dir=str(programs), environ=fake_slurm.environ)
    other = fake_slurm.slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600")
    assert other.strip() == "1"

    def _answer(wrapper: str) -> tuple[str, tuple[str, ...]]:
        said = f"say() {{\n{wrapper}\n}}\n"
        (programs / "sbatch").unlink()
        (programs / "sbatch").write_text(
            f'#!/bin/bash\n{said}out=$({fake_slurm.bin_dir}/sbatch "$@") || exit\nsay "$out"\n'
        )
        (programs / "sbatch").chmod(stat.S_IRWXU)
        return send(commands), find_jobs_by_name(name, commands)

    return _answer


@pytest.mark.parametrize(
    "wrapper",
    [
        'echo "$1"',
        'echo "Your last one: Submitted batch job 1"; echo "$1"',
        'echo "$1"; echo "Submitted batch job 1"',
        'echo "Submitted batch job 1"; echo "$1"; echo "(12 jobs of yours wait)"',
        'echo "[site] $1"',
        'echo "Last: Submitted batch job 1"; echo "[site] $1"',
        'echo "Submitted batch job 1"; echo "[site] $1"',
        'echo "Submitted batch job 1"; echo "${1##* }"',
        'echo "${1##* }"',
        "echo \"$1 on cluster $(scontrol show config | awk '/^ClusterName/{print $3}')\"",
    ],
)
def test_job_is_the_one_that_was_submitted(answer: Answer, wrapper: str) -> None:
    """Not one that a greeting quotes; and the own cluster's name is no other cluster's."""
    job, named = answer(wrapper)
    assert (job,) == named
    assert job != "1"


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ('echo "thank you"', "not with the id of a job named"),
        ('echo "Submitted batch job 1"; echo "Submitted batch job 77"', "not with the id"),
        ('echo "$1 on cluster far"', "went to the cluster far"),
    ],
)
def test_answer_that_names_no_job_of_this_launch_is_an_error(
    answer: Answer, wrapper: str, message: str
) -> None:
    """Rather than the number of another job, which `cancel` would end."""
    with pytest.raises(SchedulerRefusedError, match=message):
        answer(wrapper)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Submitted batch job 7\n", ("7", None)),
        ("Submitted batch job 7 on cluster far", ("7", "far")),
        ("one: Submitted batch job 7", None),
        ("Submitted batch job 7 was yours", None),
        ("Submitted batch job 7\nSubmitted batch job 8", None),
    ],
)
def test_read_answer(text: str, found: tuple[str, str | None] | None) -> None:
    """Only an answer of nothing else is sbatch's own."""
    assert parse_sbatch_answer(text) == found
