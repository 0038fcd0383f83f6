"""Code that runs take and no snapshot holds: programs by their path, folders that Python imports.

It is not frozen. Its content counts when runs are compared, so that a change of it is seen. Records
have a line `sha256  path` for each; the path ends in a slash if all runs of a launch take it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import site
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template
from urllib.parse import unquote, urlsplit

from hpckit.model.counted import listed
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import GAP, digest_of, frozen_sums
from hpckit.record.snapshot.collect import CodeSnapshot, is_foreign
from hpckit.record.store import open_plain, read_object, read_plain

_SOURCES = frozenset(
    {".bash", ".cfg", ".ini", ".ipynb", ".jl", ".lua", ".pl", ".py", ".r", ".rb", ".sh", ".toml"}
    | {".yaml", ".yml", ".zsh"}
)
_MODULES = (".py", ".pyx", ".so")
_OF_THE_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/opt/", "/dev/", "/proc/")
_TRACKERS = frozenset({"wandb", "mlruns"})
"""Folders in which trackers keep copies of a run's code."""
_SHOWN = 3
_MOST_ENTRIES = 20_000
"""What a folder holds beyond this is not looked at: it holds data."""
_MOST_SEARCHED = 1 << 20
_MOST_READ = 2000
"""Of more modules in a folder, size and time stand for the content of the rest."""


def outside_code(
    commands: Iterable[object], snapshot: CodeSnapshot, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a line for each program or folder of code that the snapshot does not hold, sorted.

    Example: `outside_code(["python /data/tools/train.py"], snapshot, os.environ)`.
    """
    _files_of.cache_clear()
    project = snapshot.project
    words = _words(commands, environ)
    links = (project / file.path for file in snapshot.files or () if file.link is not None)
    folders = {*_python_folders(words, environ), *map(os.path.realpath, links)}
    tops = (one for one in folders if not any(str(up) in folders for up in Path(one).parents))
    places = {f"{one}/" for one in tops}
    for program in _named(words, project / snapshot.working_dir):
        places.update(_files_of(program))
    return _lines(places, {f"{project}/{file.path}" for file in snapshot.files or ()})


def code_of_run(
    lines: Collection[str], command: object, folder: Path, environ: Mapping[str, str]
) -> frozenset[str]:
    """Return those lines of `outside_code` that concern a run which starts in `folder`."""
    shared = frozenset(line for line in lines if line.endswith("/"))
    left = {path_of(line): line for line in lines if line not in shared}
    programs = _named(_words((command,), environ), folder) if left else ()
    own = {path for program in programs for path in _files_of(program)}
    return shared | {left[path] for path in own & left.keys()}


def changed_outside(paths: LaunchPaths, project: str, lines: Collection[str]) -> tuple[str, ...]:
    """Return the paths of these recorded lines of a launch whose content has changed since."""
    held = {f"{project}/{path}" for path, _ in frozen_sums(paths)} if lines else set[str]()
    return paths_of({*lines}.difference(_lines(paths_of(lines), held)))


def recorded_outside(paths: LaunchPaths) -> frozenset[str]:
    """Return the lines that were recorded for a launch."""
    return frozenset(map(str, read_object(paths.code_record).get("outside") or ()))


def changed_at_start(paths: LaunchPaths, runs: Iterable[int]) -> tuple[str, ...]:
    """Return what had changed when an attempt of these runs began, as `note_changed` wrote it."""
    found: set[str] = set()
    for index in runs:
        marker = paths.run(index).other_code
        try:
            found |= {*read_plain(marker).decode(errors="replace").splitlines()}
        except FileNotFoundError:
            continue
        except OSError:
            found.add(str(marker))
    return tuple(sorted(found))


def paths_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in these lines, sorted."""
    return tuple(sorted({path_of(line) for line in lines}))


def unfrozen_words(paths: Sequence[str]) -> str:
    """Return in words that this code has changed."""
    return f"code that is not frozen has changed since the launch: {listed(paths, _SHOWN)}"


def path_of(line: str) -> str:
    """Return the path in a line."""
    return line.partition(GAP)[2]


def _words(commands: Iterable[object], environ: Mapping[str, str]) -> frozenset[str]:
    """Return what in these commands, and in the lines for a shell in them, may be a path."""
    found: set[str] = set()
    texts = {
        str(text)
        for command in commands
        for text in (command if isinstance(command, list | tuple) else (command,))
    }
    while texts:
        text = texts.pop()
        if "$" in text:
            text = Template(text).safe_substitute(environ)
        parts = {text, *text.split(), text.partition("=")[2]}
        if re.search(r"[\s'\"\\<>|;&()`]", text):
            lexer = shlex.shlex(text.replace("`", " "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            with suppress(ValueError):  # an open quote
                parts.update(lexer)
        new = {part for part in parts - found if "/" in part or _is_source(part)}
        found |= new
        texts |= new
    return frozenset(found)


def _named(words: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield the programs, sources and settings that words name, by their real paths."""
    for word in words:
        with suppress(OSError, ValueError, RuntimeError):  # it does not exist, or is no path
            path = os.path.realpath(folder / Path(word).expanduser(), strict=True)
            mode = os.stat(path).st_mode  # noqa: PTH116
            if stat.S_ISDIR(mode) and os.path.isfile(f"{path}/__main__.py"):  # noqa: PTH113
                yield path
            own = mode & stat.S_IXUSR and not path.startswith(_OF_THE_SYSTEM)
            if stat.S_ISREG(mode) and (own or _is_source(path)):
                yield path


def _is_source(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SOURCES  # noqa: PTH122


def _python_folders(words: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders that the Pythons at hand import from, apart from their installations.

    They are in PYTHONPATH, or installed by `pip install -e` or a file `.pth`.
    https://packaging.python.org/en/latest/specifications/direct-url
    """
    programs = (Path(word) for word in words if re.search(r"/bin/python[\d.]*\Z", word))
    prefixes = {Path(sys.prefix), Path(site.getuserbase()), *(one.parents[1] for one in programs)}
    prefixes |= {Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in environ}
    found = environ.get("PYTHONPATH", "").split(os.pathsep)
    for installed in (one for prefix in prefixes for one in prefix.glob("lib/python3*/*-packages")):
        for name in os.listdir(installed):  # noqa: PTH208
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                if name.endswith(".pth"):
                    found += read_plain(installed / name).decode().splitlines()
                elif name.endswith(".dist-info"):
                    about = json.loads(read_plain(installed / name / "direct_url.json"))
                    if about["dir_info"]["editable"] is True:
                        found.append(unquote(urlsplit(about["url"]).path))
    ours = str(Path(__file__).parents[3])
    for text in found:
        with suppress(OSError, ValueError):
            path = os.path.realpath(text, strict=True)
            if text.startswith("/") and path != ours and not path.endswith("-packages"):
                yield path


def _lines(places: Iterable[str], held: AbstractSet[str]) -> tuple[str, ...]:
    """Return the lines of these places, as far as they have files that are not `held`."""
    files = (
        (place, sorted({*_modules(place, plain=True)} - held) if place[-1] == "/" else [place])
        for place in {*places} - held
    )
    return tuple(sorted(f"{_digest(found)}{GAP}{place}" for place, found in files if found))


@cache
def _files_of(program: str) -> frozenset[str]:
    """Return the files of a program: one of Python comes with the modules in its folder.

    And with those in the folder above, if it sets the path of modules itself.
    """
    if os.path.isdir(program):  # noqa: PTH112
        return frozenset(_modules(program, plain=False))
    if not program.endswith(".py"):
        return frozenset({program})
    folder = Path(program).parent
    found = {program, *_modules(str(folder), plain=False)}
    with suppress(OSError), open_plain(program) as file:
        if b"sys.path" in file.read(_MOST_SEARCHED):
            found.update(_modules(str(folder.parent), plain=False))
    return frozenset(found)


def _modules(top: str, *, plain: bool) -> Iterator[str]:
    """Yield the modules in a folder and its packages; with `plain` in all folders of it."""
    left, seen = _MOST_ENTRIES, set[str]()
    for folder, folders, names in os.walk(top.rstrip("/"), followlinks=True):
        left -= len(names) + len(folders) + 1
        real = os.path.realpath(folder)
        if left < 0 or real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (f"{folder}/{name}" for name in names if name.endswith(_MODULES))
        folders[:] = sorted(
            name
            for name in folders
            if (plain or os.path.isfile(f"{folder}/{name}/__init__.py"))  # noqa: PTH113
            and not (name.startswith(".") or name in _TRACKERS or is_foreign(Path(folder, name)))
        )


def _digest(files: Iterable[str]) -> str:
    whole = sha256()
    for number, file in enumerate(files):
        try:
            if number < _MOST_READ:
                content = digest_of(Path(file))
            else:
                status = os.stat(file)  # noqa: PTH116
                content = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            content = "unreadable"
        whole.update(f"{file}\0{content}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()
