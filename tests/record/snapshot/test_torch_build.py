"""Promises of record.snapshot.preflight: whether a PyTorch can use a GPU, by its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.record.snapshot.environment import find_cpu_only_torch

HEAD = "from typing import Optional\n__version__ = '2.4.0+x'\ndebug = False\n"


@pytest.mark.parametrize(
    ("source", "build"),
    [
        (f"{HEAD}cuda: Optional[str] = None\nhip: Optional[str] = None\n", "2.4.0+x"),
        (f"{HEAD}cuda = None\nhip = None\n", "2.4.0+x"),
        ("cuda = None\n", "unknown version"),
        (f"{HEAD}cuda: Optional[str] = '12.1'\nhip: Optional[str] = None\n", None),
        (f"{HEAD}cuda: Optional[str] = None\nhip: Optional[str] = '6.0'\n", None),
        (f"{HEAD}cuda: Optional[str] = None\nxpu: Optional[str] = '2024'\n", None),
        (HEAD, None),
        ("cuda = None or other\n", None),
        ("cuda = \n", None),
        (None, None),
    ],
)
def test_only_a_build_that_is_certainly_without_gpus_is_named(
    tmp_path: Path, source: str | None, build: str | None
) -> None:
    """CUDA, ROCm and XPU count; a file that is missing, damaged or says less is not known."""
    if source is not None:
        (tmp_path / "version.py").write_text(source)
    assert find_cpu_only_torch(tmp_path) == build


def test_build_of_this_python_is_what_torch_itself_says() -> None:
    """The same answer as by importing it."""
    torch = pytest.importorskip("torch")
    usable = torch.version.cuda or torch.version.hip
    assert find_cpu_only_torch() == (None if usable else torch.__version__)
