"""Promises of the distribution: what is built is what works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_wheel_ships_conf_and_templates(tmp_path: Path) -> None:
    """A wheel carries conf/ and slurm_templates/, and composes and renders with nothing else."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(tmp_path), str(ROOT)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("hpckit_slurm-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for folder in ("conf", "slurm_templates"):
        shipped = {path.name for path in (ROOT / folder).rglob("*.*")}
        assert shipped == {path.name for path in (site / "hpckit" / folder).rglob("*.*")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hpckit", "launch", "--dry-run", "cluster=slurm"],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --job-name=digits-" in done.stdout
    assert not list(elsewhere.iterdir())
