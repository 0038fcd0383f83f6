"""Reads what the Python scripts of a launch import: what is missing, MPI, ranks that never meet.

Reads the files that a command names, and the project's modules that they import; nothing is run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpckit.model.command import MPI_CURE, find_started_script, list_inner_commands, parse_invocation
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import Resources
from hpckit.patterns import lazy_pattern
from hpckit.record.snapshot.entry_point import find_module
from hpckit.record.store import open_regular_file

_ELF = b"\x7fELF"
_LINKED = lazy_pattern(rb"\0libmpi(?:ch|fort|cxx|_[a-z_]+)?\.so[.\d]*\0")
"""The name of a library in an ELF file's table of names."""
_MOST_BYTES = 64 << 20
_MOST_FILES = 50
_OTHERS = frozenset({"torch", "jax", "hpckit"})
"""A script that imports one of them may have another way to its world."""
_MEETING = lazy_pattern(rb"distributed|RANK|PROCID|LOCALID|NODEID|hostname")
"""What a script has that knows of other ranks, or is told which of them it is."""
_SETS_PATH = lazy_pattern(rb"sys\.(path|modules)|addsitedir")
_TRAINS = frozenset({"sklearn", "torch", "xgboost"})
_ALONE = sys.stdlib_module_names | frozenset(
    {*_TRAINS, "PIL", "matplotlib", "numpy", "omegaconf", "pandas", "scipy", "torchaudio"}
    | {"torchtext", "torchvision", "tqdm", "yaml"}
)
"""Modules that start nothing on several ranks by themselves."""


class Script(NamedTuple):
    """A file, and the modules that it imports: in no block and so `always`, and in any place."""

    content: bytes
    always: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()


_CALLBACK = "callbacks=[hpckit.integrations.{}.Callback()]"
_LIGHTNING = (lazy_pattern(rb"\.fit\(|LightningCLI\("), _CALLBACK.format("lightning"))
_TRAINERS = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "trl": (lazy_pattern(rb"Trainer"), _CALLBACK.format("transformers")),
    "transformers": (lazy_pattern(rb"Trainer\("), _CALLBACK.format("transformers")),
    "accelerate": (
        lazy_pattern(rb"Accelerator\("),
        "hpckit.integrations.accelerate.Accelerator and .steps()",
    ),
}
"""Of each library: what a script that trains with it has, and the line for hpckit."""
_LINE_MISSING = (
    "reports no steps, and nothing is saved before a stop; one line gives steps, metrics, saves at notices, "
    "the way on after a stop, and a watch for hangs:"
)

Reader = Callable[[Path], Script | None]


def read_script(file: Path) -> Script | None:
    """Read a program or a script; None if that is not possible, or if it is no valid Python."""
    try:
        with open_regular_file(file) as opened:
            content = opened.read(_MOST_BYTES)
        if content.startswith(_ELF):
            return Script(content)
        tree = ast.parse(content)
    except (OSError, SyntaxError, ValueError):
        return None
    return Script(content, _list_imported_names(tree.body), _list_imported_names(ast.walk(tree)))


def find_multi_rank_problems(
    words: Sequence[str], resources: Resources, find: Callable[[str], Path | None], read: Reader = read_script
) -> Iterator[Finding]:
    """Yield what is wrong with a command of several ranks; `find` looks for a program or a file.

    Commands of a sweep mostly start one script: give a `read` that remembers.
    """
    ranks = resources.nodes * resources.tasks_per_node
    for command in list_inner_commands(words) if ranks > 1 else ():
        name = find_started_script(command) or command[0]
        file = find(name)
        script = None if file is None else read(file)
        if file is None or script is None:
            continue
        say = _choose_mpi_severity(file, script)
        if say is not None:
            yield say(
                "command",
                name,
                f"{name} is a program of MPI: each of its {ranks} ranks would run on its own, or "
                "fail in MPI_Init",
                MPI_CURE,
            )
        elif file.suffix == ".py" and _ignores_other_ranks(file, read):
            yield build_warning_finding(
                "command",
                name,
                f"{name} does not connect its {ranks} ranks or tell them apart: each would do the "
                "same training and write the same files",
                "for one training: resources.nodes=1 resources.tasks_per_node=1; for several: a "
                "sweep (-m); else torch.distributed, or RANK and WORLD_SIZE of the environment",
            )


def find_unimportable_modules(
    file: Path,
    folders: Sequence[Path],
    read: Reader = read_script,
    left_out: Callable[[Path], str | None] = lambda _: None,
) -> dict[str, str | None]:
    """Return the modules that a script, or a module of its folders, cannot import in this Python.

    `folders` come before what is installed; with each module goes why it is `left_out` of the frozen code, if
    it is here. Only imports count that always run; none of a script that sets the path of modules itself.
    """
    places, missing = [file.parent, *folders], dict[str, str | None]()
    for script in _read_script_and_imports(file, places, read, always=True):
        if _SETS_PATH.search(script.content):
            return {}
        tops = [name.partition(".")[0] for name in script.always if not name.startswith("__")]
        for top in tops:
            here = find_module(top, places, installed=False)
            found = [here.file, *map(Path, here.locations)] if here else []
            why = next((left_out(path) for path in found if path), None)
            if (here is None or why) and find_module(top, [], installed=True) is None:
                missing[top] = why
    return missing


def find_trainer_without_line(
    words: Sequence[str], find: Callable[[str], Path | None], read: Reader = read_script
) -> str | None:
    """Return what one line more would give a command that trains with a known trainer; None for others.

    A script that imports hpckit, or a module of its project that does, has had its choice.
    """
    for command in list_inner_commands(words):
        name, module = find_started_script(command), parse_invocation(command).module
        if module is not None:
            name = f"{module.replace('.', '/')}.py"
        elif name is None:  # ./train.py, accelerate launch train.py
            name = next((word for word in command if word.endswith(".py")), None)
        file = None if name is None or not name.endswith(".py") else find(name)
        if name is None or file is None:
            continue
        folders = [file.parent, *file.parents[: name.count("/")]]
        scripts = list(_read_script_and_imports(file, folders, read, always=False))
        tops = {name.partition(".")[0] for script in scripts for name in script.anywhere}
        for library, (used, line) in _TRAINERS.items() if "hpckit" not in tops else ():
            if library in tops and any(used.search(script.content) for script in scripts):
                return f"{name} {_LINE_MISSING} {line}"
    return None


def _ignores_other_ranks(file: Path, read: Reader) -> bool:
    own = [file.parent]
    scripts = list(_read_script_and_imports(file, own, read, always=False))
    tops = {name.partition(".")[0] for script in scripts for name in script.anywhere}
    return not _TRAINS.isdisjoint(tops) and not (
        any(_MEETING.search(script.content) for script in scripts)
        or any(find_module(top, own, installed=False) is None for top in tops - _ALONE)
    )


def _read_script_and_imports(
    file: Path, folders: Sequence[Path], read: Reader, *, always: bool
) -> Iterator[Script]:
    """Yield a script, and the modules in folders that it imports (`always`: unconditionally)."""
    left, seen = [file], {file}
    while left and len(seen) <= _MOST_FILES:
        script = read(left.pop())
        if script is None:
            continue
        yield script
        names = script.always if always else script.anywhere
        for name in (*names, *(name.rpartition(".")[0] for name in names if "." in name)):
            found = find_module(name, folders, installed=False)
            if found is not None and found.file is not None and found.has_readable_source:
                left += {found.file} - seen
                seen.add(found.file)


def _choose_mpi_severity(file: Path, script: Script) -> Callable[[str, object, str, str], Finding] | None:
    """Return `error` or `warning` for an MPI program, None for any other file."""
    if script.content.startswith(_ELF):
        return build_error_finding if _LINKED.search(script.content) else None
    if file.suffix != ".py" or "mpi4py.MPI" not in script.always:
        return None
    roots = {name.partition(".")[0] for name in script.anywhere}
    return build_warning_finding if roots & _OTHERS else build_error_finding


def _list_imported_names(statements: Iterable[ast.AST]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for statement in statements for name in _list_names_of_import(statement)))


def _list_names_of_import(statement: ast.AST) -> list[str]:
    match statement:
        case ast.Import():
            return [name.name for name in statement.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{name.name}" for name in statement.names]
        case _:
            return []
