"""Promises of the distribution: what is built is what works."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest
from waiting import run_to_end

import hpckit

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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that is built from it alone."""
    folder: Path = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / source.name.removesuffix(".tar.gz")
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.slow
def test_dist_is_as_the_index_wants_it(dist: Path) -> None:
    """Metadata and description of both are complete, and the description renders."""
    files = [*map(str, (*dist.glob("*.whl"), *dist.glob("*.tar.gz")))]
    assert len(files) == 2
    done = run_to_end([sys.executable, "-m", "twine", "check", "--strict", *files])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wheel_works_where_only_it_is_installed(dist: Path, tmp_path: Path) -> None:
    """In an empty environment, outside the checkout: it composes, renders, and finds what it ships.

    What it depends on is borrowed from this environment, as installing torch takes minutes.
    """
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv")
    python, elsewhere = tmp_path / "venv" / "bin" / "python", tmp_path / "elsewhere"
    install = ["pip", "--python", str(python), "install", "-q", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=120)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # A path in a .pth file is only searched: links to this checkout that lie there are not followed.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere.mkdir()

    def say(*words: str) -> str:
        command = [str(python.parent / "hpckit"), *words]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = run_to_end(command, cwd=elsewhere, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert say("--version") == f"hpckit {hpckit.__version__}\n"
    assert "1 run on this machine" in say("launch", "experiment=digits", "--dry-run", "cluster=local")
    script = say("launch", "--dry-run", "experiment=digits", "cluster=slurm")
    assert "#SBATCH --job-name=digits-" in script
    assert not list(elsewhere.iterdir())
    found = json.loads(say("status", "--help", "--json"))
    assert found["output_schema"]["$schema"].endswith("2020-12/schema")
    guide = Path(json.loads(say("--help", "--json"))["guide"])
    assert guide.is_relative_to(site)
    assert guide.read_text() == (ROOT / "docs" / "guides" / "automation.md").read_text()
    for folder in ("conf", "slurm_templates"):
        shipped = {path.name for path in (ROOT / folder).rglob("*.*")}
        assert shipped == {path.name for path in (site / "hpckit" / folder).rglob("*.*")}
    assert (site / "hydra_plugins" / "hpckit_launcher" / "launcher.py").is_file()  # no __init__.py above it
    assert not (site / "hydra_plugins" / "__init__.py").exists()
    (said,) = site.glob("*.dist-info/entry_points.txt")
    assert (
        "[hydra.plugins]\nhpckit = hydra_plugins.hpckit_launcher.launcher:HpckitLauncher" in said.read_text()
    )
    assert _templates(ROOT / "hpckit")
    assert _templates(ROOT / "hpckit") == _templates(site / "hpckit")


def _templates(package: Path) -> set[str]:
    """Return the templates inside the package: those of the report, with its style and script."""
    files = [*package.glob("features/*/templates/**/*.*")]
    return {file.relative_to(package).as_posix() for file in files}
