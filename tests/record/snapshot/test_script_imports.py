"""Promises of script_imports: programs of MPI, ranks that never meet, modules that are missing."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpckit.model.finding import Severity
from hpckit.model.launch import Resources
from hpckit.record.snapshot.script_imports import (
    Script,
    find_multi_rank_problems,
    find_unimportable_modules,
    read_script,
)

MPI = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.Get_size())\n"


def found(folder: Path, *words: str, ranks: int = 2) -> list[Severity]:
    """Return how a command of so many ranks in a folder is judged."""
    resources = Resources(tasks_per_node=ranks)
    findings = [*find_multi_rank_problems(words, resources, lambda name: folder / name)]
    assert all("srun --mpi=pmix" in finding.hint for finding in findings)
    return [finding.severity for finding in findings]


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


@pytest.mark.parametrize(
    ("files", "is_warned"),
    [
        ({"train.py": "import torch\nimport numpy as np\nprint(1)\n"}, True),
        ({"train.py": "import net\n", "net.py": "import torch\n"}, True),
        ({"train.py": "import net\n", "net.py": "import torch.distributed\n"}, False),
        ({"train.py": "import os\nrank = os.environ['RANK']\n"}, False),
        ({"train.py": "import lightning\n"}, False),
        ({"train.py": "def f():\n    from hpckit import attach\n"}, False),
        ({"train.py": "print(1)\n"}, False),
        ({"train.py": "import (\n"}, False),
    ],
)
def test_script_whose_ranks_cannot_meet_is_warned_of(
    tmp_path: Path, files: dict[str, str], *, is_warned: bool
) -> None:
    """Only if nothing in it, and no library that it uses, could tell its ranks apart."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def judged(ranks: int) -> list[str]:
        resources = Resources(tasks_per_node=ranks)
        words = ("python", "train.py", "--lr", "1")
        findings = find_multi_rank_problems(words, resources, lambda name: tmp_path / name)
        assert all(finding.severity is Severity.warning for finding in findings)
        return [
            problem.message
            for problem in find_multi_rank_problems(words, resources, lambda name: tmp_path / name)
        ]

    assert judged(1) == []
    assert [("4 ranks" in message) for message in judged(4)] == [True] * is_warned


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import os, nowhere_a\nfrom nowhere_b.c import d\nimport own\n", ["nowhere_a", "nowhere_b"]),
        ("try:\n    import nowhere_a\nexcept ImportError:\n    pass\n", []),
        ("def f():\n    import nowhere_a\n", []),
        ("import sys\nsys.path.append('x')\nimport nowhere_a\n", []),
        ("from . import nowhere_a\nfrom package import inner\nimport package.inner\n", []),
        ("import other\n", ["nowhere_c"]),
        ("import __main__\n", []),
        ("try:\n    import other\nexcept ImportError:\n    pass\n", []),
        ("def f():\n    import other\n", []),
        ("import sys\nsys.modules['nowhere_a'] = sys\nimport nowhere_a\n", []),
        ("import numpy, nested\n", []),
        ("import nowhere_a(\n", []),
    ],
)
def test_modules_that_a_script_cannot_import_are_named(
    tmp_path: Path, source: str, missing: list[str]
) -> None:
    """Those that always run, of the project's modules, too; not those it can go without."""
    for name, text in {
        "train.py": source,
        "own.py": "",
        "other.py": "import nowhere_c\n",
        "package/__init__.py": "",
        "package/inner.py": "",
        "more/nested.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_unimportable_modules(tmp_path / "train.py", [tmp_path / "more"]) == dict.fromkeys(missing)


def test_a_script_is_read_once_for_all_runs_of_a_sweep(tmp_path: Path) -> None:
    """Their commands differ in what follows it."""
    (tmp_path / "train.py").write_text("import numpy, net, nowhere\n")
    (tmp_path / "net.py").write_text("")
    opened: list[str] = []

    def counted(file: Path) -> Script | None:
        opened.append(file.name)
        return read_script(file)

    read, resources = cache(counted), Resources(tasks_per_node=2)
    for rate in range(3):
        words = ("python", "train.py", str(rate))
        assert len([*find_multi_rank_problems(words, resources, lambda name: tmp_path / name, read)]) == 0
        assert find_unimportable_modules(tmp_path / "train.py", [], read) == {"nowhere": None}
    assert sorted(opened) == ["net.py", "train.py"]
