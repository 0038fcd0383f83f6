"""Code that runs take and no snapshot holds: programs by their path, folders that Python imports.

It is not frozen. Its content counts when runs are compared, so that a change of it is seen. Records
have a line `sha256  path` for each file; a path that ends in a slash is a folder of modules that
all runs of a launch take, or the order of these folders.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache, lru_cache
from glob import iglob
from hashlib import sha256
from itertools import islice
from pathlib import Path
from string import Template
from urllib.parse import unquote, urlsplit

from hpckit.errors import ConfigError
from hpckit.model.command import command_words, commands_of, invocation
from hpckit.model.counted import listed
from hpckit.model.launch import LaunchConfig
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import GAP, digest_of, frozen_sums
from hpckit.record.snapshot.collect import CodeSnapshot, is_foreign
from hpckit.record.snapshot.uncounted import is_source
from hpckit.record.store import open_plain, read_object, read_plain
from hpckit.values import dataclass, field

_SHELLS = (".bash", ".sh", ".zsh")
MODULES = (".py", ".pyx", ".so", ".sh", ".toml", ".yaml", ".yml")
_OF_THE_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/dev/", "/proc/")
_WRITTEN = frozenset({"wandb", "mlruns", "multirun", "outputs", "lightning_logs"})
"""Folders of what runs write, unless they are packages: trackers keep copies of code there."""
_SHOWN = 3
_MOST_NAMES = 5000
"""A folder with more files than this holds data, and is left out."""
_MOST_ENTRIES = 100_000
"""A tree with more is not looked at to its end, and never counts as the same."""
_MOST_BESIDE = 2000
"""Near a script, folders without `__init__.py` count if there is no more than this in all."""
_MOST_SEARCHED = 1 << 20
_MOST_READ, _MOST_BYTES = 2000, 64 << 20
"""Of more modules in a folder, and of larger files, size and time stand for the content."""
_ORDER = "PYTHONPATH/"


def outside_code(
    taken: Iterable[LaunchConfig], snapshot: CodeSnapshot, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the lines of what runs with these settings take and the snapshot does not hold.

    Example: `outside_code([point.settings for point in points], snapshot, os.environ)`.
    """
    _files_of.cache_clear()
    _script.cache_clear()
    project = snapshot.project
    links = (project / file.path for file in snapshot.files or () if file.link is not None)
    folders, places = set(map(os.path.realpath, links)), set[str]()
    order: list[str] = []
    for part in _alike(taken):
        words = _Words.of(part, project / snapshot.working_dir, environ)
        words.take_modules(part if snapshot.files is None else ())
        order += words.python_path()
        folders.update(words.python_folders())
        places.update(file for program in words.programs() for file in _files_of(program))
    folders.update(order)
    tops = (top for top in folders if not any(str(up) in folders for up in Path(top).parents))
    places.update(f"{top}/" for top in tops)
    ordered = [f"{sha256(repr(order).encode()).hexdigest()}{GAP}{_ORDER}"] if order[1:] else []
    held = {f"{project}/{file.path}" for file in snapshot.files or ()}
    return tuple(sorted((*_lines(places, held), *ordered)))


def code_of_run(
    lines: Collection[str], settings: LaunchConfig, folder: Path, environ: Mapping[str, str]
) -> frozenset[str]:
    """Return those lines of `outside_code` that concern a run which starts in `folder`."""
    shared = frozenset(line for line in lines if line.endswith("/"))
    left = {path_of(line): line for line in lines if line not in shared}
    if not left:
        return shared
    words = _Words.of((settings,), folder, environ)
    words.take_modules((settings,))
    own = {path for program in words.programs() for path in _files_of(program)}
    return shared | {left[path] for path in own & left.keys()}


def differing(now: AbstractSet[str], recorded: AbstractSet[str]) -> tuple[str, ...]:
    """Return the paths in which the code of a run is not as it was recorded for a launch, sorted.

    A file that the record does not have was not there, and so is a result: but for modules. One
    that is gone counts if it was beside what the run takes: the record is that of all runs.
    """
    before = {path_of(line) for line in recorded}
    beside = {path_of(line).rpartition("/")[0] for line in now}
    gone = {path for path in before if path.rpartition("/")[0] in beside}
    gone = {path for path in gone if path[-1] != "/" and not os.path.lexists(path)}
    shared = {line for line in now ^ recorded if line.endswith("/")}
    own = {line for line in now - recorded if not line.endswith("/")}
    own = {line for line in own if path_of(line) in before or line.endswith(MODULES[:3])}
    return tuple(sorted({*paths_of(shared | own), *gone}))


def changed_outside(paths: LaunchPaths, project: str, lines: Collection[str]) -> tuple[str, ...]:
    """Return the paths of these recorded lines of a launch whose content has changed since."""
    lines = {line for line in lines if path_of(line) != _ORDER}
    held = {f"{project}/{path}" for path, _ in frozen_sums(paths)} if lines else set[str]()
    return paths_of(lines.difference(_lines(paths_of(lines), held)))


def recorded_outside(paths: LaunchPaths) -> frozenset[str]:
    """Return the lines that were recorded for a launch."""
    return frozenset(map(str, read_object(paths.code_record).get("outside") or ()))


def paths_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in these lines, sorted."""
    return tuple(sorted({path_of(line) for line in lines}))


def unfrozen_words(paths: Sequence[str]) -> str:
    """Return in words that this code has changed."""
    return f"code that is not frozen has changed since the launch: {listed(paths, _SHOWN)}"


def path_of(line: str) -> str:
    """Return the path in a line."""
    return line.partition(GAP)[2]


def _alike(taken: Iterable[LaunchConfig]) -> Iterable[Sequence[LaunchConfig]]:
    """Return the settings in groups that have the same variables."""
    groups: dict[str, list[LaunchConfig]] = {}
    for settings in taken:
        groups.setdefault(repr((settings.env, settings.cluster.env)), []).append(settings)
    return groups.values()


@dataclass(slots=True, kw_only=True)
class _Words:
    """What in commands, variables and set-up of runs may be a path; `bases` are their folders.

    `started` are words that are programs whatever their names, `modules` those behind `-m`.
    """

    environ: Mapping[str, str]
    bases: list[str]
    found: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, alike: Sequence[LaunchConfig], folder: Path, environ: Mapping[str, str]) -> _Words:
        """Return the words of runs that have the same variables and start in this folder."""
        first = alike[0]
        own = {**first.cluster.env, **first.env}
        words = cls(environ={**environ, **own}, bases=[str(folder)])
        words.take(f"{name}={value}" for name, value in own.items())
        words.take((*first.cluster.setup, first.cluster.python or ""))
        for settings in alike:
            words.take_command(settings.command)
        words.bases += [
            path for word in words.found for path in words.paths(word) if _is_folder(path)
        ]
        return words

    def take_modules(self, taken: Iterable[LaunchConfig]) -> None:
        """Take the modules of functions: if code is not frozen, they are the project's own."""
        tops = {(run.entry_point or "").partition(":")[0].partition(".")[0] for run in taken} - {""}
        self.modules |= tops | {f"{top}.py" for top in tops}

    def take_command(self, command: object) -> None:
        """Take the words of a command, and what it starts."""
        if not command:
            return
        self.take(map(str, command) if isinstance(command, list | tuple) else (str(command),))
        with suppress(ConfigError):
            for each in commands_of(command_words(command)):
                started = invocation(each)
                self.started.update({each[0], started.script or ""})
                if started.module:
                    top = started.module.partition(".")[0]
                    self.modules.update({top, f"{top}.py"})

    def take(self, texts: Iterable[str]) -> None:
        """Take these texts apart, with variables filled in; lines for a shell, too."""
        left = set(texts)
        while left:
            text = left.pop()
            if "$" in text:
                text = Template(text).safe_substitute(self.environ)
            parts = {text, *text.split(), text.partition("=")[2], *text.split(",")}
            if text[:1] == "-" or "://" in text:
                parts.add(text[text.find("/", text.find("://") + 2) :])
            if re.search(r"[\s'\"\\<>|;&()`]", text):
                lexer = shlex.shlex(text.replace("`", " "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                with suppress(ValueError):  # an open quote
                    parts.update(lexer)
            parts -= self.found
            new = {part for part in parts if "/" in part or part == ".." or is_source(part)}
            self.found |= new
            left |= new

    def paths(self, word: str) -> Iterator[str]:
        """Yield the paths that a word stands for, those that exist."""
        for base in self.bases[: 1 if word[:1] in "/~" else None]:
            with suppress(OSError, ValueError, RuntimeError):  # it does not exist, or is no path
                path = os.path.join(base, Path(word).expanduser())  # noqa: PTH118
                if re.search(r"[*?\[]", word) and not os.path.lexists(path):
                    yield from map(os.path.realpath, islice(iglob(path), _MOST_NAMES))  # noqa: PTH207
                else:
                    yield os.path.realpath(path, strict=True)

    def programs(self) -> Iterator[str]:
        """Yield the programs, sources and settings that are named, by their real paths."""
        seen: set[str] = set()
        words = [*self.found, *self.started, *self.modules]
        while words:
            word = words.pop()
            there = set(self.paths(word))
            if word in self.started and "/" not in word:
                found = shutil.which(word, path=self.environ.get("PATH"))
                there |= {os.path.realpath(found)} if found else set()
            for path in there - seen:
                seen.add(path)
                if _is_program(path, given=word in self.started, module=word in self.modules):
                    yield path
                    before = set(self.found)
                    self._take_script(path)
                    words += self.found - before

    def _take_script(self, path: str) -> None:
        """Take what a script for a shell names in turn."""
        text, starter = _script(path)
        if path.endswith(_SHELLS) or starter.endswith(b"sh"):
            self.bases += [os.path.dirname(path)]  # noqa: PTH120
            self.take(text.decode(errors="replace").splitlines())

    def python_path(self) -> list[str]:
        """Return the folders of PYTHONPATH, in order, as they are told to runs."""
        told = [word for word in self.found if word.startswith("PYTHONPATH=")]
        texts = [
            self.environ.get("PYTHONPATH", ""),
            *(word.partition("=")[2] for word in sorted(told)),
        ]
        return list(self._importable(part for text in texts for part in text.split(os.pathsep)))

    def python_folders(self) -> Iterator[str]:
        """Yield the folders outside of their installations that the Pythons at hand import from.

        They were installed by `pip install -e`, or a file `.pth` names them.
        https://packaging.python.org/en/latest/specifications/direct-url
        """
        of_words = (Path(word).parents[1] for word in self.found if _IN_BIN.search(word))
        prefixes = {Path(sys.prefix), Path(site.getuserbase()), *of_words}
        named = ("VIRTUAL_ENV", "CONDA_PREFIX")
        prefixes |= {Path(self.environ[name]) for name in named if name in self.environ}
        for installed in (one for top in prefixes for one in top.glob("lib/python3*/*-packages")):
            found: list[str] = []
            for name in os.listdir(installed):  # noqa: PTH208
                with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                    if name.endswith(".pth"):
                        lines = read_plain(installed / name).decode().splitlines()
                        found += [os.path.join(installed, line) for line in lines if line.strip()]  # noqa: PTH118
                    elif name.endswith(".dist-info"):
                        about = json.loads(read_plain(installed / name / "direct_url.json"))
                        if about["dir_info"]["editable"] is True:
                            found.append(unquote(urlsplit(about["url"]).path))
            yield from self._importable(found)

    def _importable(self, found: Iterable[str]) -> Iterator[str]:
        ours = str(Path(__file__).parents[3])
        for text in found:
            for path in self.paths(text) if text else ():
                if path != ours and not path.endswith("-packages"):
                    yield path


_INTERPRETER = re.compile(r"/(?:python[\d.]*|bash|sh)\Z")
_IN_BIN = re.compile(r"\A/.+/bin/[^/]+\Z")


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _is_program(path: str, *, given: bool, module: bool) -> bool:
    mode = os.stat(path).st_mode if os.path.exists(path) else 0  # noqa: PTH110, PTH116
    if stat.S_ISDIR(mode):
        return module or os.path.isfile(f"{path}/__main__.py")  # noqa: PTH113
    own = (mode & stat.S_IXUSR or given) and not _INTERPRETER.search(path)
    return stat.S_ISREG(mode) and (
        is_source(path) or bool(own and not path.startswith(_OF_THE_SYSTEM))
    )


@cache
def _files_of(program: str) -> frozenset[str]:
    """Return the files of a program: one of Python comes with the modules in its folder.

    And with those in the folder above, if it sets the path of modules itself.
    """
    if _is_folder(program):
        return frozenset(_modules(program, plain=True))
    found, folder = {program}, Path(program).parent
    text, starter = _script(program)
    is_python = program.endswith(".py") or b"python" in starter
    # What is installed in a folder `bin` imports from its installation.
    if is_python and folder.name != "bin":
        few = [*islice(_modules(str(folder), plain=True, most=_MOST_BESIDE), _MOST_BESIDE)]
        plain = "" not in few and len(few) < _MOST_BESIDE
        found.update(few if plain else _modules(str(folder), plain=False))
        if b"sys.path" in text:
            found.update(_modules(str(folder.parent), plain=False))
    return frozenset(name for name in found if name)


@lru_cache(maxsize=16)
def _script(path: str) -> tuple[bytes, bytes]:
    """Return the beginning of a file, and the line `#!` in it; both empty if it is no such file."""
    try:
        with open_plain(path) as file:
            text = file.read(_MOST_SEARCHED)
    except OSError:
        return b"", b""
    return text, text.partition(b"\n")[0] if text[:2] == b"#!" else b""


def _lines(places: Iterable[str], held: AbstractSet[str]) -> tuple[str, ...]:
    """Return the lines of these places, as far as they have files that are not `held`."""
    files = (
        (place, sorted({*_modules(place, plain=True)} - held) if place[-1] == "/" else [place])
        for place in {*places} - held
    )
    return tuple(sorted(f"{_digest(found)}{GAP}{place}" for place, found in files if found))


def _modules(top: str, *, plain: bool, most: int = _MOST_ENTRIES) -> Iterator[str]:
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
        if len(names) <= _MOST_NAMES:
            yield from (f"{folder}/{name}" for name in names if name.endswith(MODULES))
        folders[:] = sorted(name for name in folders if _holds_code(folder, name, plain=plain))


def _holds_code(folder: str, name: str, *, plain: bool) -> bool:
    package = os.path.isfile(f"{folder}/{name}/__init__.py")  # noqa: PTH113
    written = name.startswith(".") or (name in _WRITTEN and not package)
    return (plain or package) and not written and not is_foreign(Path(folder, name))


def _digest(files: Iterable[str]) -> str:
    whole = sha256()
    for number, file in enumerate(files):
        try:
            status = os.stat(file) if file else None  # noqa: PTH116
            if status is None:
                content: str | None = os.urandom(8).hex()
            elif number < _MOST_READ and status.st_size <= _MOST_BYTES:
                content = digest_of(Path(file))
            else:
                content = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            content = "unreadable"
        whole.update(f"{file}\0{content}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()
