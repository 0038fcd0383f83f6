"""Code that runs take and no snapshot holds: programs by their path, folders that Python imports.

Also the project's own files, where a command takes them from the project itself. It is not frozen.
Its content counts when runs are compared, so that a change of it is seen. Records have a line
`sha256  path` for each file; a path that ends in a slash is a folder of modules that all runs of a
launch take, or the order of these folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

from hpckit.model.counted import format_short_list
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.launch import LaunchConfig, WorkingFolder
from hpckit.record.frozen import CodeRecord
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import GAP, compute_file_checksum, read_frozen_checksums
from hpckit.record.snapshot.collect import CodeSnapshot, is_non_code_folder
from hpckit.record.snapshot.named_code import (
    MOST_NAMES,
    Words,
    list_frozen_command_words,
    read_file_start_and_shebang,
)
from hpckit.record.store import read_json_object

_YAML = (".yaml", ".yml")
MODULES = (".py", ".pyx", ".so", ".sh", ".toml", *_YAML)
_WRITTEN = frozenset({"wandb", "mlruns", "multirun", "outputs", "lightning_logs"})
"""Folders of what runs write, unless they are packages: trackers keep copies of code there."""
_SHOWN = 3
_MOST_ENTRIES = 100_000
"""A tree with more is not looked at to its end, and never counts as the same."""
_MOST_BESIDE = 2000
"""Near a script, folders without `__init__.py` count if there is no more than this in all."""
_MOST_READ, _MOST_BYTES = 2000, 64 << 20
"""Of more modules in a folder, and of larger files, size and time stand for the content."""
_ORDER = "PYTHONPATH/"
PROJECT = "HPCKIT_PROJECT"


def list_outside_code_checksums(
    taken: Iterable[LaunchConfig], snapshot: CodeSnapshot, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the lines of what runs with these settings take and the snapshot does not hold.

    Example:
        list_outside_code_checksums([point.settings for point in points], snapshot, os.environ)

    """
    _list_program_files.cache_clear()
    read_file_start_and_shebang.cache_clear()
    project = snapshot.project
    links = (project / file.path for file in snapshot.files or () if file.link is not None)
    folders, places = set(map(os.path.realpath, links)), set[str]()
    held = {f"{project}/{file.path}" for file in snapshot.files or ()}
    in_project = {**environ, PROJECT: str(project)}
    order, imported = list[str](), set[tuple[str, bool]]()
    for part in _group_settings_by_environment(taken):
        words = Words.from_settings(part, [project / snapshot.working_dir], in_project)
        words.add_entry_point_modules(part if snapshot.files is None else ())
        told = words.list_pythonpath_folders()
        order += (path for path, _ in told)
        imported.update(told, words.find_editable_install_folders())
        for place, files, live in _list_named_code_files(words):
            in_place = live and Path(place).is_relative_to(project)
            places |= files - (frozenset() if in_place else held)
    # Of the project's own folders, ranks import from the frozen ones in `python_path` first.
    first = {os.path.normpath(project / path) for path in snapshot.python_path}
    own = [top for top, live in imported if live and top not in first]
    own = [top for top in own if Path(top).is_relative_to(project)]
    places |= {name for top in own for name in _list_modules_in_folder(top, plain=True) if name in held}
    folders |= {path for path, _ in imported}
    tops = (top for top in folders if not any(str(up) in folders for up in Path(top).parents))
    places.update(f"{top}/" for top in tops)
    ordered = [f"{sha256(repr(order).encode()).hexdigest()}{GAP}{_ORDER}"] if order[1:] else []
    return tuple(sorted((*_build_checksum_lines(places, held), *ordered)))


def select_outside_code_of_run(
    lines: Collection[str], settings: LaunchConfig, folders: Sequence[str | Path], environ: Mapping[str, str]
) -> frozenset[str]:
    """Return those lines of `list_outside_code_checksums` that concern a run.

    Scripts are read in `folders`.

    They are where it was launched, and the frozen counterpart if it is there by now. `environ` has
    the project's folder as `PROJECT`.
    """
    shared = frozenset(line for line in lines if line.endswith("/"))
    left = {parse_outside_code_path(line): line for line in lines if line not in shared}
    if not left:
        return shared
    words = Words.from_settings((settings,), folders, environ)
    words.add_entry_point_modules((settings,))
    own = {path for _, files, _ in _list_named_code_files(words) for path in files}
    tops = tuple(
        f"{top}/" for top, _ in (*words.list_pythonpath_folders(), *words.find_editable_install_folders())
    )
    return shared | {left[path] for path in left if path in own or path.startswith(tops)}


def list_changed_outside_code_paths(now: AbstractSet[str], recorded: AbstractSet[str]) -> tuple[str, ...]:
    """Return the paths in which the code of a run is not as it was recorded for a launch, sorted.

    A file that the record does not have was not there, and so is a result: but for modules. One
    that is gone counts if it was beside what the run takes: the record is that of all runs.
    """
    before = {parse_outside_code_path(line) for line in recorded}
    beside = {parse_outside_code_path(line).rpartition("/")[0] for line in now}
    gone = {path for path in before if path.rpartition("/")[0] in beside}
    gone = {path for path in gone if path[-1] != "/" and not os.path.lexists(path)}
    shared = {line for line in now ^ recorded if line.endswith("/")}
    own = {line for line in now - recorded if not line.endswith("/")}
    own = {line for line in own if parse_outside_code_path(line) in before or line.endswith(MODULES[:3])}
    return tuple(sorted({*parse_outside_code_paths(shared | own), *gone}))


def warn_about_unfrozen_code(snapshot: CodeSnapshot, commands: str) -> Iterator[Finding]:
    """Yield a warning for files that runs take from the project, although they are frozen."""
    held = {f"{snapshot.project}/{file.path}" for file in snapshot.files or ()}
    found = held.intersection(parse_outside_code_paths(snapshot.outside))
    start = snapshot.project / snapshot.working_dir
    names, words = [os.path.relpath(path, start) for path in found], re.split(r"\W+", commands)
    # First what a command names: of a script all modules beside it count.
    names.sort(key=lambda name: (Path(name).stem not in words, name))
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield build_warning_finding(
            "command",
            names[0],
            f"{format_short_list(names, 1)} {verb} taken from the project, not from "
            "the frozen code: a start, a restart and `hpckit resume` run what you edit until then",
            "name it by its path from here, without cd, as the command's own script: python "
            "train.py; a module: python -P -m MODULE; a folder of PYTHONPATH: code.paths",
        )


def list_imported_modules_left_out(code: CodeRecord) -> dict[str, str]:
    """Return what this process has imported and nobody installed, of which there is no frozen copy.

    These are names of packages or modules, each with one of its files.
    """
    found = dict[str, str]()
    others = tuple(map(os.path.realpath, (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))))
    for name, module in list(sys.modules.items()) if code.snapshot else ():
        file = os.path.realpath(getattr(module, "__file__", None) or sys.prefix)
        own = not (file.startswith(others) or "-packages/" in file or "hpckit_launcher" in file)
        if own and code.find_frozen(file) == file:
            found.setdefault(name.partition(".")[0], file)
    return found


def find_changed_outside_code(paths: LaunchPaths, project: str, lines: Collection[str]) -> tuple[str, ...]:
    """Return the paths of these recorded lines of a launch whose content has changed since."""
    lines = {line for line in lines if parse_outside_code_path(line) != _ORDER}
    held = {f"{project}/{path}" for path, _ in read_frozen_checksums(paths)} if lines else set[str]()
    return parse_outside_code_paths(
        lines.difference(_build_checksum_lines(parse_outside_code_paths(lines), held))
    )


def read_outside_code_checksums(paths: LaunchPaths) -> frozenset[str]:
    """Return the lines that were recorded for a launch."""
    return frozenset(map(str, read_json_object(paths.code_record).get("outside") or ()))


def parse_outside_code_paths(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in these lines, sorted."""
    return tuple(sorted({parse_outside_code_path(line) for line in lines}))


def format_changed_code_warning(paths: Sequence[str]) -> str:
    """Return in words that this code has changed."""
    return f"code that is not frozen has changed since the launch: {format_short_list(paths, _SHOWN)}"


def parse_outside_code_path(line: str) -> str:
    """Return the path in a line."""
    return line.partition(GAP)[2]


def _group_settings_by_environment(taken: Iterable[LaunchConfig]) -> Iterable[Sequence[LaunchConfig]]:
    """Return the settings in groups that have the same variables, and start in the same place."""
    groups: dict[str, list[LaunchConfig]] = {}
    for settings in taken:
        cwd = settings.runtime.cwd
        frozen = list_frozen_command_words(settings) if cwd is WorkingFolder.project else ()
        alike = repr((settings.env, settings.cluster.env, cwd, frozen))
        groups.setdefault(alike, []).append(settings)
    return groups.values()


def _list_named_code_files(words: Words) -> Iterator[tuple[str, frozenset[str], bool]]:
    """Yield what these words name, its files, and whether runs take it from there."""
    for program, live in words.find_programs():
        yield program, _list_program_files(program), live
    for folder, live in words.find_hydra_config_folders():
        files = frozenset(
            name for name in _list_modules_in_folder(folder, plain=True) if name.endswith(_YAML)
        )
        yield folder, files, live


@cache
def _list_program_files(program: str) -> frozenset[str]:
    """Return the files of a program: one of Python comes with the modules in its folder.

    And with those in the folder above, if it sets the path of modules itself.
    """
    if Path(program).is_dir():
        return frozenset(_list_modules_in_folder(program, plain=True))
    found, folder = {program}, Path(program).parent
    text, starter = read_file_start_and_shebang(program)
    is_python = program.endswith(".py") or b"python" in starter
    # What is installed in a folder `bin` imports from its installation.
    if is_python and folder.name != "bin":
        few = [*islice(_list_modules_in_folder(str(folder), plain=True, most=_MOST_BESIDE), _MOST_BESIDE)]
        plain = "" not in few and len(few) < _MOST_BESIDE
        found.update(few if plain else _list_modules_in_folder(str(folder), plain=False))
        if b"sys.path" in text:
            found.update(_list_modules_in_folder(str(folder.parent), plain=False))
    return frozenset(name for name in found if name)


def _build_checksum_lines(places: Iterable[str], held: AbstractSet[str]) -> tuple[str, ...]:
    """Return the lines of these places; of a folder without the files that are `held`."""
    files = (
        (place, sorted({*_list_modules_in_folder(place, plain=True)} - held) if place[-1] == "/" else [place])
        for place in {*places}
    )
    return tuple(sorted(f"{_hash_files(found)}{GAP}{place}" for place, found in files if found))


def _list_modules_in_folder(top: str, *, plain: bool, most: int = _MOST_ENTRIES) -> Iterator[str]:
    """Yield the modules in a folder and its packages; with `plain` in all folders of it.

    An empty name says that there is more.
    """
    left, seen = most, set[str]()
    for folder, folders, names in os.walk(top.rstrip("/"), followlinks=True):
        left -= len(names) + len(folders) + 1
        real = os.path.realpath(folder)
        if left < 0:
            yield ""
            return
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        if len(names) <= MOST_NAMES:
            yield from (f"{folder}/{name}" for name in names if name.endswith(MODULES))
        folders[:] = sorted(name for name in folders if _may_hold_code(folder, name, plain=plain))


def _may_hold_code(folder: str, name: str, *, plain: bool) -> bool:
    package = os.path.isfile(f"{folder}/{name}/__init__.py")  # noqa: PTH113
    written = name.startswith(".") or (name in _WRITTEN and not package)
    return (plain or package) and not written and not is_non_code_folder(Path(folder, name))


def _hash_files(files: Iterable[str]) -> str:
    whole = sha256()
    for number, file in enumerate(files):
        try:
            status = os.stat(file) if file else None  # noqa: PTH116
            if status is None:
                content: str | None = os.urandom(8).hex()
            elif number < _MOST_READ and status.st_size <= _MOST_BYTES:
                content = compute_file_checksum(Path(file))
            else:
                content = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            content = "unreadable"
        whole.update(f"{file}\0{content}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()
