"""What an agent finds in its container: at once, without torch, and with what to do."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import ContainerError
from hpckit.features.containers import check
from hpckit.features.containers.check import explain_failed_start
from hpckit.model.launch import Cluster, DeviceKind, LaunchConfig, Resources, Runtime
from hpckit.values import replace


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a torch of a version into the image."""

    def install(text: str) -> None:
        importlib.invalidate_caches()
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('it takes seconds')")
        (tmp_path / "torch" / "version.py").write_text(text)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return install


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("__version__ = '2.12.0+cu130'\ncuda = '13.0'\nhip = None\n", ("2.12.0+cu130", "CUDA 13.0")),
        (
            "__version__ = '2.9.1'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n",
            ("2.9.1", "ROCm 6.4"),
        ),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0+cpu", "")),
    ],
)
def test_torch_is_read_and_not_imported(torch: Any, text: str, found: tuple[str, str]) -> None:
    """Its version, and what it is built for."""
    torch(text)
    assert check.read_torch_version() == found


def asks(**more: Any) -> LaunchConfig:
    """Return the settings of a function on two GPUs."""
    return LaunchConfig(entry_point="train:main", resources=Resources(gpus_per_node=2), **more)


def problem(settings: LaunchConfig, torch: str, cuda: str, root: Path) -> str:
    """Return what is said of an image on a node with NVIDIA's driver."""
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/nvidiactl").touch()
    return check.find_problem("img.sif", settings, torch, cuda, root)[0]


def test_what_no_rank_could_run_with_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch, one without CUDA, a driver that is not there; a command brings its own."""
    monkeypatch.setattr(check, "_can_load", lambda _: False)
    assert "has no torch" in problem(asks(), "", "", tmp_path)
    assert "built without CUDA, and 2 GPUs" in problem(asks(), "2.13.0+cpu", "", tmp_path)
    assert "it has no libcuda.so.1" in problem(asks(), "2.12.0", "CUDA 13.0", tmp_path)
    on_cpus = asks(runtime=Runtime(device=DeviceKind.cpu))
    assert problem(on_cpus, "2.13.0+cpu", "", tmp_path) == ""
    assert problem(replace(asks(), entry_point=None, command=["a"]), "", "", tmp_path) == ""


def test_a_network_that_falls_back_silently_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """InfiniBand without its library, and little memory that can be locked."""
    monkeypatch.setattr(check, "_can_load", lambda _: False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    settings = asks(cluster=Cluster(fabric="infiniband"))
    assert [words.partition(":")[0] for words in check.find_network_warnings(settings, Path("/"))] == [
        "InfiniBand is not usable",
        "locked memory is limited to 8192 KiB, too little for RDMA",
    ]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo hpckit-python 3 10", "is 3.10, and agents need 3.11"),
        ("echo 'FATAL: exec format error' >&2; exit 255", "FATAL: exec format error"),
        ("exit 3", "exit code 3"),
    ],
)
def test_python_that_cannot_start_an_agent_is_named(tmp_path: Path, script: str, says: str) -> None:
    """Asked of the image afterwards."""
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(ContainerError) as told:
        explain_failed_start("img.sif", [str(program)], os.environ)
    assert says in told.value.message


def test_python_that_is_new_enough_is_not_blamed() -> None:
    """Then the agent's own words count."""
    explain_failed_start("img.sif", [sys.executable], os.environ)


def test_agent_checks_in_less_than_a_second() -> None:
    """Whatever else is imported: no torch."""
    code = "import sys, hpckit.features.containers.hooks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
