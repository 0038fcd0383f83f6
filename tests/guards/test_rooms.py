"""Guards over the shape of the package: small rooms, and imports where a reader expects them."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
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
        room: sum(path.read_text().count("\n") for path in (PACKAGE / room).rglob("*.py")) for room in budgets
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


LEAST_LINES, MOST_LINES = 60, 400
SMALL = {
    "__main__": "what `python -m hpckit` runs",
    "cli/commands/act/shell": "a verb",
    "cli/commands/act/shrink": "a verb",
    "cli/commands/look/diff": "a verb",
    "cli/commands/maintain/completion": "a verb",
    "cli/commands/maintain/sandbox": "a verb",
    "cli/terminal/progress_bar": "draws; its only user says when",
    **{
        f"features/containers/{name}": "a runtime: one file each"
        for name in ("apptainer", "charliecloud", "podman", "pyxis")
    },
    "features/exporting/tensorboard_files": "its library is optional",
    "runtime/agent/__main__": "what a step of agents runs",
    "runtime/rank/forkserver": "what a fork server runs",
}
"""Modules below that size which nobody imports, or one module alone, and why."""
PAIRS = {
    *("cli/commands", "experiments", "model/diagnosis", "planning/compatibility", "record/metrics"),
    *("runtime/data", "runtime/model_check", "runtime/parallel/loss", "runtime/study"),
    "testing/nvml",
}
"""Folders of one or two modules; no more of them."""


def test_modules_are_subjects_neither_snippets_nor_volumes() -> None:
    """A module of few lines lives with its only user, and one of many is two subjects."""
    sources = {
        file.relative_to(PACKAGE).with_suffix("").as_posix(): file.read_text()
        for file in PACKAGE.rglob("*.py")
        if file.name != "__init__.py"
    }
    lines = {name: text.count("\n") for name, text in sources.items()}
    users: Counter[str] = Counter()
    for text in sources.values():
        users.update({name for name in _imported(text) if name in sources})
    small = {name for name in sources if lines[name] < LEAST_LINES and users[name] <= 1}
    assert small == SMALL.keys()
    assert {name for name in sources if lines[name] > MOST_LINES} == set()
    folders = Counter(str(Path(name).parent) for name in sources)
    few = {folder for folder, count in folders.items() if count <= 2}
    assert few == PAIRS


def _imported(text: str) -> Iterator[str]:
    """Yield the paths that a module may import: of modules, and of names in them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpckit"):
            path = (node.module or "").removeprefix("hpckit").lstrip(".").replace(".", "/")
            yield path
            yield from (f"{path}/{name.name}".lstrip("/") for name in node.names)
