"""Reads what the Python scripts of a launch import: what is missing, MPI, ranks that never meet.

Reads the files that a command names, and the project's modules that they import; nothing is run.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpckit.model.command import MPI_CURE, commands_of, script_of
from hpckit.model.finding import Finding, error, warning
from hpckit.model.launch import Resources
from hpckit.record.snapshot.entry_point import find_module
from hpckit.record.store import open_plain

_LINKED = re.compile(rb"\0libmpi(?:ch|fort|cxx|_[a-z_]+)?\.so[.\d]*\0")
"""The name of a library in an ELF file's table of names."""
_MOST_BYTES = 64 << 20
_MOST_FILES = 50
_OTHERS = frozenset({"torch", "jax", "hpckit"})
"""A script that imports one of them may have another way to its world."""
_MEETING = re.compile(rb"distributed|RANK|PROCID|LOCALID|NODEID|hostname")
"""What a script has that knows of other ranks, or is told which of them it is."""
_SETS_PATH = re.compile(rb"sys\.(path|modules)|addsitedir")
_TRAINS = frozenset({"sklearn", "torch", "xgboost"})
_ALONE = sys.stdlib_module_names | frozenset(
    {*_TRAINS, "PIL", "matplotlib", "numpy", "omegaconf", "pandas", "scipy", "torchaudio"}
    | {"torchtext", "torchvision", "tqdm", "yaml"}
)
"""Modules that start nothing on several ranks by themselves."""


def rank_findings(
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
        elif file is not None and file.suffix == ".py" and _is_alone(file):
            yield warning(
                "command",
                name,
                f"{name} has nothing by which its {ranks} ranks meet or differ: each would train "
                "alone, the same, and write the same files",
                "for one training: resources.nodes=1 resources.tasks_per_node=1; for several: a "
                "sweep (-m); else torch.distributed, or RANK and WORLD_SIZE of the environment",
            )


def missing_modules(file: Path, folders: Sequence[Path]) -> list[str]:
    """Return the modules that a script, or a module of its folders, cannot import in this Python.

    `folders` come before what is installed. Only imports count that always run; none of a script
    that sets the path of modules itself.
    """
    places, missing = [file.parent, *folders], dict[str, None]()
    for content, names in _scripts(file, places, always=True):
        if _SETS_PATH.search(content):
            return []
        tops = [name.partition(".")[0] for name in names if not name.startswith("__")]
        missing |= {top: None for top in tops if find_module(top, places, installed=True) is None}
    return list(missing)


def _is_alone(file: Path) -> bool:
    own = [file.parent]
    read = list(_scripts(file, own, always=False))
    tops = {name.partition(".")[0] for _, names in read for name in names}
    return not _TRAINS.isdisjoint(tops) and not (
        any(_MEETING.search(content) for content, _ in read)
        or any(find_module(top, own, installed=False) is None for top in tops - _ALONE)
    )


def _scripts(
    file: Path, folders: Sequence[Path], *, always: bool
) -> Iterator[tuple[bytes, Sequence[str]]]:
    """Yield content and imports of a script, and of the modules in folders that it imports.

    With `always` only imports that run whenever the module does: those in no block.
    """
    left, seen = [file], {file}
    while left and len(seen) <= _MOST_FILES:
        try:
            with open_plain(left.pop()) as opened:
                content = opened.read(_MOST_BYTES)
            tree = ast.parse(content)
        except (OSError, SyntaxError, ValueError):
            continue
        statements = tree.body if always else ast.walk(tree)
        names = list(dict.fromkeys(name for one in statements for name in _imported(one)))
        yield content, names
        for name in (*names, *(name.rpartition(".")[0] for name in names if "." in name)):
            found = find_module(name, folders, installed=False)
            if found is not None and found.file is not None and found.is_source:
                left += {found.file} - seen
                seen.add(found.file)


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
