"""Guards over the shape of the package: small rooms, and imports where a reader expects them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hpckit"
LAZY_IMPORTS = 26
"""Fewer than this: for what is slow or optional, where a verb or a rank first needs it."""


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


def test_rooms_keep_to_their_budgets_of_lines() -> None:
    """Each room has one; a commit raises it with a reason."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    budgets: dict[str, int] = project["tool"]["hpckit"]["budget"]
    folders = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))} - {"features"}
    features = {f"features/{path.parent.name}" for path in PACKAGE.glob("features/*/__init__.py")}
    assert budgets.keys() == folders | features
    lines = {
        room: sum(path.read_text().count("\n") for path in (PACKAGE / room).rglob("*.py"))
        for room in budgets
    }
    assert {room: size for room, size in lines.items() if size > budgets[room]} == {}


def test_tests_that_need_a_slurm_stand_in_one_folder() -> None:
    """`scripts/test` looks for them in tests/integration alone, so that it collects few files."""
    tests = Path(__file__).parents[1]
    marked = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("test_*.py")
        if "pytest.mark.slurm" in path.read_text() and path.name != Path(__file__).name
    }
    assert {name for name in marked if not name.startswith("integration/")} == set()
