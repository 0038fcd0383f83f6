"""Jobs on another cluster would be taken for lost and started twice: none gets there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import run_to_end

from hpckit.slurm.clusters import VARIABLES
from hpckit.slurm.commands import remove_slurm_variables

pytestmark = pytest.mark.whole

PROGRAM = """#!/bin/sh
echo "$(basename $0) $* [$SLURM_CLUSTERS$SBATCH_CLUSTERS]" >> {folder}/asked
case $(basename $0) in sbatch) echo "Submitted batch job 123 on cluster far";; esac
"""
LAUNCH = ("launch", "experiment=command", "command=true", "cluster=slurm", "code.snapshot=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A machine whose sbatch sends every job to the cluster `far`."""

    folder: Path

    def launch(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Launch there."""
        own = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder)}
        return run_to_end(
            [sys.executable, "-m", "hpckit", *LAUNCH, *words],
            cwd=self.folder,
            env={**own, "HPCKIT_OUTPUTS": str(self.folder / "outputs"), **environ},
        )

    def asked(self, program: str) -> list[str]:
        """Return how a program was called."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return such a machine."""
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr"):
        (tmp_path / "bin" / name).write_text(PROGRAM.format(folder=tmp_path))
        (tmp_path / "bin" / name).chmod(0o755)
    return Site(folder=tmp_path)


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        (("+resources.additional_parameters.clusters=far",), {}, "additional_parameters.clusters"),
        ((), {"SLURM_CLUSTERS": "far"}, "SLURM_CLUSTERS"),
        ((), {"SBATCH_CLUSTERS": "far,near"}, "SBATCH_CLUSTERS"),
    ],
)
def test_launch_on_another_cluster_is_refused_before_sbatch(
    site: Site, words: tuple[str, ...], environ: dict[str, str], names: str
) -> None:
    """Whatever names clusters is refused by its name, with what to do, and nothing is submitted."""
    done = site.launch(*words, **environ)
    assert done.returncode == 2
    assert names in done.stderr
    assert "login node of that cluster" in " ".join(done.stderr.split())
    assert site.asked("sbatch") == []


def test_job_that_went_to_another_cluster_is_taken_back(site: Site) -> None:
    """Where the site itself sends a job elsewhere, it is cancelled there, and the launch fails."""
    done = site.launch()
    assert done.returncode != 0
    assert "job 123 went to the cluster far; it was cancelled" in " ".join(done.stderr.split())
    assert site.asked("scancel") == ["scancel --clusters=far 123 []"]


def test_questions_go_to_the_own_cluster_whatever_the_environment_says() -> None:
    """A shell with $SLURM_CLUSTERS is answered about the jobs that the launch has."""
    assert remove_slurm_variables(dict.fromkeys(VARIABLES, "far")) == {}
