"""Whether an entry point is there: found and read, never imported.

Responsible for looking where a rank's Python will look; it must not run any of the user's code.
"""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SOURCES = (".py",)
_UNSEEN = frozenset({"exec", "globals"})
"""What may bind names that reading does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModule:
    """A module that was found. `file` is null for a namespace, or where it has no file."""

    file: Path | None
    locations: tuple[str, ...] = ()

    @property
    def is_source(self) -> bool:
        """Whether it can be read."""
        return self.file is not None and self.file.suffix in _SOURCES


def find_module(name: str, folders: Sequence[Path], *, installed: bool) -> FoundModule | None:
    """Return the module of this dotted name; None where it is not to be found.

    `folders` come first, as on PYTHONPATH; `installed`: what this very Python has comes after.
    """
    first, *rest = name.split(".")
    found = _find(first, [str(folder) for folder in folders])
    if found is None and installed:
        found = _installed(first)
    for part in rest:
        if found is None or not found.locations:
            return None
        # By its last part alone: for a dotted name Python would want the package imported.
        found = _find(part, found.locations)
    return found


def defines(source: str, attribute: str) -> bool:
    """Return whether a module binds this name (or `Class.method`), as far as reading can tell.

    Where it cannot, as after `import *`, with `__getattr__` or where `globals()` is called, it
    returns True. Raises SyntaxError.
    """
    tree = ast.parse(source)
    if any(isinstance(node, ast.Name) and node.id in _UNSEEN for node in ast.walk(tree)):
        return True
    body: Sequence[ast.stmt] = tree.body
    for part in attribute.split("."):
        names = dict(_bound(body))
        if part not in names:
            return "*" in names or "__getattr__" in names
        inner = names[part]
        if not isinstance(inner, ast.ClassDef) or inner.bases:
            return True
        body = inner.body
    return True


def names_like(source: str, attribute: str) -> list[str]:
    """Return the names of a module's own that this one is probably a slip of, nearest first."""
    return difflib.get_close_matches(attribute, dict(_bound(ast.parse(source).body)), n=2)


def runs_nothing(source: str, name: str) -> bool:
    """Return whether calling this function of a module runs none of its lines.

    So it is for `async def` and for generators, unless a decorator makes something else of them.
    """
    named = dict(_bound(ast.parse(source).body)).get(name)
    if isinstance(named, ast.AsyncFunctionDef):
        return not named.decorator_list
    if not isinstance(named, ast.FunctionDef) or named.decorator_list:
        return False
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(named))


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _find(name: str, locations: Sequence[str]) -> FoundModule | None:
    spec = importlib.machinery.PathFinder.find_spec(name, locations)
    return None if spec is None else _module(spec)


def _installed(name: str) -> FoundModule | None:
    # Beside PathFinder there are the built-in modules and finders of editable installations.
    for finder in sys.meta_path:
        found = getattr(finder, "find_spec", None)
        spec = None if found is None else found(name, None)
        if spec is not None:
            return _module(spec)
    return None


def _module(spec: importlib.machinery.ModuleSpec) -> FoundModule:
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return FoundModule(file=file, locations=tuple(spec.submodule_search_locations or ()))


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that statements bind at their own level, blocks such as `if` included."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield (alias.asname or alias.name.partition(".")[0]), alias
        else:
            yield from _assigned(statement)
            for _, inner in ast.iter_fields(statement):
                if isinstance(inner, list):
                    yield from _bound(_statements(inner))


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.walk(statement):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, child


def _statements(items: Sequence[object]) -> list[ast.stmt]:
    """Return the statements among a field's items, and those of `except` and `case` clauses."""
    found: list[ast.stmt] = []
    for item in items:
        if isinstance(item, ast.stmt):
            found.append(item)
        elif isinstance(item, ast.ExceptHandler | ast.match_case):
            found.extend(item.body)
    return found
