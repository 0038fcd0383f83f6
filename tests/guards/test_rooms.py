"""Guards over the shape of the package: small rooms, and imports where a reader expects them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hpckit"
MOST_FILES = 26
LAZY_IMPORTS = 26
"""Fewer than this: for what is slow or optional, where a verb or a rank first needs it."""


def test_no_room_holds_more_files_than_one_reads() -> None:
    """A folder of more Python files than that is two rooms."""
    sizes = Counter(file.parent for file in PACKAGE.rglob("*.py"))
    assert {room: size for room, size in sizes.items() if size > MOST_FILES} == {}


def test_imports_inside_functions_stay_rare() -> None:
    """Each hides an arrow between rooms from its reader."""
    lazy = [
        f"{file.relative_to(PACKAGE)}:{inner.lineno}"
        for file in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(function)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert len(lazy) < LAZY_IMPORTS, "\n".join(lazy)


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Its name says which one it is, without the module: for readers, and for a search."""
    places: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_tests_that_need_a_slurm_stand_in_one_folder() -> None:
    """`scripts/test` looks for them in tests/integration alone, so that it collects few files."""
    tests = Path(__file__).parents[1]
    marked = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("test_*.py")
        if "pytest.mark.slurm" in path.read_text() and path.name != Path(__file__).name
    }
    assert {name for name in marked if not name.startswith("integration/")} == set()
