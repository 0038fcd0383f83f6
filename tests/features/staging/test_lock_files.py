"""An environment is built once at launch, from the project's lock file."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest

from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.features.staging.environment import FOLDER
from hpckit.features.staging.lock_files import build_locked_environment, find_locked_environment
from hpckit.model.node_setup import EnvironmentSource

FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
[ "$2" != --check ] || exit {check}
[ {code} = 0 ] || {{ echo "no network" >&2; exit {code}; }}
for folder in "$UV_PROJECT_ENVIRONMENT" "$(dirname "$4" 2>/dev/null)/.pixi/envs/default" "$3" "$4"; do
    [ ! -f "$folder" ] || continue
    case "$folder" in {outputs}/*) mkdir -p "$folder/bin"; : > "$folder/bin/python";; esac
done
"""


def plant(tmp_path: Path, *programs: str, code: int = 0, check: int = 0) -> Context:
    """Return a context with programs on PATH that note how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name in programs:
        text = FAKE.format(log=tmp_path / "log", code=code, check=check, outputs=tmp_path / "outputs")
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return Context(
        environ={"PATH": f"{folder}:/usr/bin:/bin", "VIRTUAL_ENV": "/elsewhere"},
        cwd=tmp_path,
        stdout=StringIO(),
        stderr=StringIO(),
        now=lambda: datetime.now(UTC),
        sleep=lambda _: None,
    )


@pytest.mark.parametrize(
    ("source", "files", "program", "said"),
    [
        ("uv", ("uv.lock", "pyproject.toml"), "uv", "uv sync --frozen --project {project}"),
        (
            "pixi",
            ("pixi.lock", "pixi.toml"),
            "pixi",
            "pixi install --frozen --manifest-path {folder}/pixi.toml",
        ),
        (
            "conda",
            ("conda-lock.yml",),
            "conda-lock",
            "conda-lock install --prefix {folder} {project}/conda-lock.yml",
        ),
        (
            "conda",
            ("conda-linux-64.lock",),
            "mamba",
            "mamba create --yes --prefix {folder} --file {project}/conda-linux-64.lock",
        ),
    ],
)
def test_an_environment_is_built_once_for_a_lock_file(
    tmp_path: Path, source: str, files: tuple[str, ...], program: str, said: str
) -> None:
    """By the program that the lock file belongs to; a folder below finds the project."""
    project = tmp_path / "project"
    (project / "below").mkdir(parents=True)
    for name in files:
        (project / name).write_text("first\n")
    context, outputs = plant(tmp_path, program), tmp_path / "outputs"
    locked = find_locked_environment(EnvironmentSource(source), project / "below", outputs)
    for _ in range(2):
        build_locked_environment(locked, context)
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "--check" not in line]
    assert lines == [said.format(project=project, folder=locked.folder)]
    assert locked.kept_lock.read_text() == "first\n"
    (project / files[0]).write_text("second\n")
    assert find_locked_environment(EnvironmentSource(source), project, outputs).folder != locked.folder


def test_what_keeps_an_environment_from_being_built_is_said(tmp_path: Path) -> None:
    """No lock file, no program, an exit code; what is half done is built again."""
    outputs = tmp_path / "outputs"
    with pytest.raises(ConfigError, match=r"there is no uv\.lock in"):
        find_locked_environment(EnvironmentSource.uv, tmp_path, outputs)
    (tmp_path / "pixi.lock").touch()
    with pytest.raises(ConfigError, match=r"pixi\.lock is alone"):
        find_locked_environment(EnvironmentSource.pixi, tmp_path, outputs)
    (tmp_path / "uv.lock").write_text("1")
    locked = find_locked_environment(EnvironmentSource.uv, tmp_path, outputs)
    with pytest.raises(ConfigError, match="uv is not on PATH"):
        build_locked_environment(locked, plant(tmp_path))
    untold = plant(tmp_path, "uv", code=3, check=1)
    with pytest.raises(UsageError, match=r"exit code 3: no network"):
        build_locked_environment(locked, untold)
    assert "warning: uv could not tell whether" in untold.stderr.getvalue()  # type: ignore[attr-defined]
    (locked.folder / "half").mkdir(parents=True)
    build_locked_environment(locked, plant(tmp_path, "uv"))
    assert not (locked.folder / "half").exists()


def test_an_environment_that_no_launch_has_goes_when_it_was_unused_for_long(tmp_path: Path) -> None:
    """One that a launch links stays, however old it is."""
    outputs = tmp_path / "outputs"
    context = plant(tmp_path, "uv")
    folders = []
    for text in ("1", "2", "3"):
        (tmp_path / "uv.lock").write_text(text)
        locked = find_locked_environment(EnvironmentSource.uv, tmp_path, outputs)
        build_locked_environment(locked, context)
        os.utime(locked.kept_lock, (0, 0))
        if text == "1":
            (tmp_path / "launch-has-it").hardlink_to(locked.kept_lock)
        folders.append(locked.folder)
    assert [folder.exists() for folder in folders] == [True, False, True]
    assert {path.parent for path in folders} == {outputs / FOLDER}


def test_uv_itself_is_run_with_words_that_it_knows(tmp_path: Path, uv: Path) -> None:
    """A lock file that does not fit the project any more is refused."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\n'
    )
    context = plant(tmp_path)
    environ = {**os.environ, "PATH": f"{uv.parent}:{os.environ['PATH']}", "UV_OFFLINE": "1"}
    context = Context(
        **{name: getattr(context, name) for name in ("cwd", "stdout", "stderr", "now", "sleep")},
        environ=environ,
    )
    subprocess.run([uv, "lock"], cwd=tmp_path, env=environ, check=True, capture_output=True)
    locked = find_locked_environment(EnvironmentSource.uv, tmp_path, tmp_path / "outputs")
    build_locked_environment(locked, context)
    assert subprocess.check_output([locked.python, "-c", "print(1)"], text=True) == "1\n"
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\n'
    )
    with pytest.raises(ConfigError, match=r"is older than pyproject\.toml"):
        build_locked_environment(
            find_locked_environment(EnvironmentSource.uv, tmp_path, tmp_path / "outputs"), context
        )


@pytest.fixture(name="uv")
def find_uv() -> Path:
    """Return uv, or skip."""
    found = shutil.which("uv")
    if found is None:
        pytest.skip("uv is not on PATH")
    return Path(found)
