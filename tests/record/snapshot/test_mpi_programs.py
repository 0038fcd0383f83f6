"""Promises of mpi_programs: a program of MPI is known before each of its ranks is alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpckit.model.finding import Severity
from hpckit.model.launch import Resources
from hpckit.record.snapshot.mpi_programs import mpi_findings

MPI = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.Get_size())\n"


def found(folder: Path, *words: str, ranks: int = 2) -> list[Severity]:
    """Return how a command of so many ranks in a folder is judged."""
    resources = Resources(tasks_per_node=ranks)
    findings = [*mpi_findings(words, resources, lambda name: folder / name)]
    assert all("srun --mpi=pmix" in one.hint for one in findings)
    return [one.severity for one in findings]


@pytest.mark.parametrize(
    ("source", "judged"),
    [
        (MPI, [Severity.error]),
        ("import mpi4py.MPI\n", [Severity.error]),
        (f"import torch.distributed as dist\n{MPI}", [Severity.warning]),
        ("try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None\n", []),
        ("# from mpi4py import MPI\nprint(1)\n", []),
        ("from mpi4py import MPI(\n", []),
    ],
)
def test_script_that_imports_mpi_is_refused_for_several_ranks(
    tmp_path: Path, source: str, judged: list[Severity]
) -> None:
    """Unless it can do without: one rank is a world, and torch has another way to its own."""
    (tmp_path / "solve.py").write_text(source)
    assert found(tmp_path, "python", "-u", "solve.py", "--n", "3") == judged
    assert found(tmp_path, "bash", "-c", "cd . && python solve.py") == judged
    assert found(tmp_path, "python", "solve.py", ranks=1) == []
    assert found(tmp_path, "python", "absent.py") == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_program_linked_to_mpi_is_refused_for_several_ranks(tmp_path: Path) -> None:
    """Whatever its name; one that is linked to nothing of MPI runs."""
    (tmp_path / "mpi.c").write_text("int MPI_Init(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int MPI_Init(void); int main(void) { return MPI_Init(); }\n")
    (tmp_path / "plain.c").write_text("int main(void) { return 0; }\n")
    for words in (
        "-shared -Wl,-soname,libmpi.so.40 -o libmpi.so mpi.c",
        "-o solve main.c -L. -lmpi",
        "-o plain plain.c",
    ):
        subprocess.run(["gcc", *words.split()], cwd=tmp_path, check=True)
    assert found(tmp_path, "./solve", "input") == [Severity.error]
    assert found(tmp_path, "./plain") == []
