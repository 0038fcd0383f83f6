"""Checks whether an entry point exists, by finding and reading it; it is never imported.

It searches where a rank's Python will search, and runs none of the user's code.
"""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

_GIVEN = 2
"""An entry point is called with a configuration and a run."""

_HYDRA = lazy_pattern(r"(hydra\.)?main\(.*(config_name|config_path|version_base)|hydra\.main\b")
_UNSEEN = frozenset({"exec", "globals"})
"""These may bind names that reading the source does not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModule:
    """A module that was found. `file` is None for a namespace package or if it has no file."""

    file: Path | None
    locations: tuple[str, ...] = ()

    @property
    def has_readable_source(self) -> bool:
        """Whether its source can be read."""
        return self.file is not None and self.file.suffix == ".py" and self.file.is_file()


def find_module(name: str, folders: Sequence[Path], *, installed: bool) -> FoundModule | None:
    """Return the module with this dotted name; None if it is not found.

    `folders` come first, as on PYTHONPATH; with `installed`, the modules of this Python come after.
    """
    first, *rest = name.split(".")
    found = _find_in_locations(first, [str(folder) for folder in folders])
    if found is None and installed:
        found = _find_installed_module(first)
    for part in rest:
        if found is None or not found.locations:
            return None
        # Only by its last part: for a dotted name Python would import the package.
        found = _find_in_locations(part, found.locations)
    return found


def may_define_name(source: str, attribute: str) -> bool:
    """Return whether a module binds this name (or `Class.method`), as far as the source shows.

    Returns True if the source does not show it, as after `import *`, with `__getattr__` or calls of
    `globals()`. Raises SyntaxError.
    """
    tree = ast.parse(source)
    if any(isinstance(node, ast.Name) and node.id in _UNSEEN for node in ast.walk(tree)):
        return True
    body: Sequence[ast.stmt] = tree.body
    for part in attribute.split("."):
        names = dict(_list_bound_names(body))
        if part not in names:
            return "*" in names or "__getattr__" in names
        inner = names[part]
        if not isinstance(inner, ast.ClassDef) or inner.bases:
            return True
        body = inner.body
    return True


def suggest_similar_names(source: str, attribute: str) -> list[str]:
    """Return the module's own names that this one is probably a typo of, closest first."""
    return difflib.get_close_matches(attribute, dict(_list_bound_names(ast.parse(source).body)), n=2)


def explain_uncallable_entry_point(source: str, name: str) -> tuple[str, str] | None:
    """Return why `function(config, run)` would fail or run nothing, and what to do about it.

    None if it is not certain. Only names bound once, by a plain `def`, are judged: a decorator
    replaces the function. An exception is Hydra's own decorator, which never takes two arguments.
    """
    named = [node for bound, node in _list_bound_names(ast.parse(source).body) if bound == name]
    if len(named) != 1 or not isinstance(named[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    function = named[0]
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    if any(_HYDRA.match(decorator) for decorator in decorators):
        return (
            "is a Hydra application: @hydra.main composes a configuration by itself",
            f"remove the decorator, since hpckit composes it: def {name}(config, run)",
        )
    if decorators:
        return None
    if isinstance(function, ast.AsyncFunctionDef) or any(
        isinstance(node, ast.Yield | ast.YieldFrom) for node in _walk_function_body(function)
    ):
        return (
            "is a coroutine or generator function: calling it runs none of it",
            "make it a plain `def` without `yield`; inside it, asyncio.run() runs a coroutine",
        )
    if _accepts_two_arguments(function.args):
        return None
    takes = f"{name}({ast.unparse(function.args)})"
    return (
        f"is {takes}, which cannot be called with a configuration and a run",
        f"let it take both: def {name}(config, run)",
    )


def _accepts_two_arguments(arguments: ast.arguments) -> bool:
    places = len(arguments.posonlyargs) + len(arguments.args)
    wanted = places - len(arguments.defaults)
    named = any(default is None for default in arguments.kw_defaults)
    return wanted <= _GIVEN <= (_GIVEN if arguments.vararg else places) and not named


def _walk_function_body(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _find_in_locations(name: str, locations: Sequence[str]) -> FoundModule | None:
    spec = importlib.machinery.PathFinder.find_spec(name, locations)
    return None if spec is None else _module_from_spec(spec)


def _find_installed_module(name: str) -> FoundModule | None:
    # In addition to PathFinder there are the built-in modules and finders of editable
    # installations.
    for finder in sys.meta_path:
        found = getattr(finder, "find_spec", None)
        spec = None if found is None else found(name, None)
        if spec is not None:
            return _module_from_spec(spec)
    return None


def _module_from_spec(spec: importlib.machinery.ModuleSpec) -> FoundModule:
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return FoundModule(file=file, locations=tuple(spec.submodule_search_locations or ()))


def _list_bound_names(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that statements bind at their own level, including blocks such as `if`."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield (alias.asname or alias.name.partition(".")[0]), alias
        else:
            for child in ast.walk(statement):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                    yield child.id, child
            for _, inner in ast.iter_fields(statement):
                if isinstance(inner, list):
                    yield from _list_bound_names(_list_nested_statements(inner))


def _list_nested_statements(items: Sequence[object]) -> list[ast.stmt]:
    """Return the statements among a field's items, and those of `except` and `case` clauses."""
    found: list[ast.stmt] = []
    for item in items:
        if isinstance(item, ast.stmt):
            found.append(item)
        elif isinstance(item, ast.ExceptHandler | ast.match_case):
            found.extend(item.body)
    return found
