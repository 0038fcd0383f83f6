"""Finds programs of MPI in a command: each of several ranks of hpckit would be a world of its own.

Reads the files that the command names; nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpckit.model.command import MPI_CURE, commands_of, script_of
from hpckit.model.finding import Finding, error, warning
from hpckit.model.launch import Resources
from hpckit.record.store import open_plain

_LINKED = re.compile(rb"\0libmpi(?:ch|fort|cxx|_[a-z_]+)?\.so[.\d]*\0")
"""The name of a library in an ELF file's table of names."""
_MOST_BYTES = 64 << 20
_OTHERS = frozenset({"torch", "jax", "hpckit"})
"""A script that imports one of them may have another way to its world."""


def mpi_findings(
    words: Sequence[str], resources: Resources, find: Callable[[str], Path | None]
) -> Iterator[Finding]:
    """Yield what is wrong with a command of several ranks; `find` looks for a program or a file."""
    ranks = resources.nodes * resources.tasks_per_node
    for command in commands_of(words) if ranks > 1 else ():
        name = script_of(command) or command[0]
        file = find(name)
        say = None if file is None else _judge(file)
        if say is not None:
            yield say(
                "command",
                name,
                f"{name} is a program of MPI, and each of its {ranks} ranks would be alone, or "
                "fail in MPI_Init",
                MPI_CURE,
            )


def _judge(file: Path) -> Callable[[str, object, str, str], Finding] | None:
    """Return how to say that a file is a program of MPI; None if it is not, or cannot be read."""
    try:
        with open_plain(file) as opened:
            content = opened.read(_MOST_BYTES)
        if content.startswith(b"\x7fELF"):
            return error if _LINKED.search(content) else None
        if file.suffix != ".py" or b"mpi4py" not in content:
            return None
        tree = ast.parse(content)
    except (OSError, SyntaxError, ValueError):
        return None
    if "mpi4py.MPI" not in {name for one in tree.body for name in _imported(one)}:
        return None
    roots = {name.partition(".")[0] for one in ast.walk(tree) for name in _imported(one)}
    return warning if roots & _OTHERS else error


def _imported(statement: ast.AST) -> list[str]:
    match statement:
        case ast.Import():
            return [one.name for one in statement.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{one.name}" for one in statement.names]
        case _:
            return []
