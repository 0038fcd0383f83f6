"""Promises of the distribution: what is built is what works."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from waiting import run_to_end

ROOT = Path(__file__).parents[2]


def test_what_trains_brings_all_that_its_ranks_import() -> None:
    """`[train]` is enough to train: scikit-learn's numpy must not hide that ours is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    brought = {re.split(r"[^\w.-]", one)[0].lower() for one in wanted}
    names = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "hydra": "hydra-core"}
    found = set()
    for path in (ROOT / "hpckit" / "runtime").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    others = found - sys.stdlib_module_names - {"hpckit", "optuna"}  # a study has its own extra
    assert {"numpy", "torch"} <= others
    assert {names.get(other, other) for other in others} <= brought


@pytest.mark.slow
def test_wheel_ships_conf_and_templates(tmp_path: Path) -> None:
    """A wheel carries conf/ and all templates, and composes and renders with nothing else."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(tmp_path), str(ROOT)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("hpckit_slurm-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for folder in ("conf", "slurm_templates"):
        shipped = {path.name for path in (ROOT / folder).rglob("*.*")}
        assert shipped == {path.name for path in (site / "hpckit" / folder).rglob("*.*")}
    assert _templates(ROOT / "hpckit")
    assert _templates(ROOT / "hpckit") == _templates(site / "hpckit")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run_to_end(
        [sys.executable, "-P", "-m", "hpckit", "launch", "--dry-run", "experiment=digits", "cluster=slurm"],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --job-name=digits-" in done.stdout
    assert not list(elsewhere.iterdir())


def _templates(package: Path) -> set[str]:
    """Return the templates inside the package: those of the report, with its style and script."""
    files = [*package.glob("features/*/templates/**/*.*")]
    return {file.relative_to(package).as_posix() for file in files}
