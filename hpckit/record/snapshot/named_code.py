"""Finds the code that commands, variables and set-up of runs name, by words that may be paths.

Files are found as they are in the project; who asks decides which of them a snapshot holds.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from glob import iglob
from itertools import islice, pairwise
from pathlib import Path
from string import Template
from urllib.parse import unquote, urlsplit

from hpckit.errors import ConfigError
from hpckit.model.command import (
    find_started_script,
    list_inner_commands,
    parse_invocation,
    parse_shell_commands,
    split_command,
)
from hpckit.model.launch import LaunchConfig, WorkingFolder
from hpckit.patterns import lazy_pattern
from hpckit.record.snapshot.uncounted import has_source_suffix
from hpckit.record.store import open_regular_file, read_regular_file
from hpckit.values import dataclass, field

_SHELLS = (".bash", ".sh", ".zsh")
_OF_THE_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/dev/", "/proc/")
MOST_NAMES = 5000
"""A folder with more files than this holds data, and is left out."""
_MOST_SEARCHED = 1 << 20
_SAFE_PATH = frozenset({"-P", "-I"})
"""Options with which Python looks for no module in the folder that it starts in."""
_ENTERED = lazy_pattern(
    r"(?:(?:\A|[\s;&|({'\"])(?:cd|pushd)|(?:\A|\s)(?:-C|-D|--chdir|--cwd|--directory|--pwd))"
    r"(?:\s+-\S*)*(?:[\s=]+|\Z)((?:\"[^\"]*\"|'[^']*'|[^\s;&|)'\"])*)"
)
"""A folder in which a command goes on."""
_DEFAULTED = lazy_pattern(r"\$\{(\w+):?[-?=]([^{}]*)\}")
_OWN_FOLDER = lazy_pattern(r'\$\(dirname (?:-- )?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\)')
_CONFIGS = lazy_pattern(r"(?:--config-(?:dir|path)|-c[dp])(?:=(.*))?\Z|\+*hydra\.searchpath=(.*)")
_INTERPRETER = lazy_pattern(r"/(?:python[\d.]*|bash|sh)\Z")
_IN_BIN = lazy_pattern(r"\A/.+/bin/[^/]+\Z")


def list_frozen_command_words(settings: LaunchConfig) -> tuple[str, ...]:
    """Return the words that a command takes from the frozen code, even in the project itself.

    Ranks start the frozen script (`build_user_command`); `python -P` looks for no module where it is.
    """
    with suppress(ConfigError):
        words = split_command(settings.command or "")
        safe = (each for each in list_inner_commands(words) if not _SAFE_PATH.isdisjoint(each))
        tops = [(parse_invocation(each).module or "").partition(".")[0] for each in safe]
        return (find_started_script(words) or words[0], *tops, *(f"{top}.py" for top in tops))
    return ()


@dataclass(slots=True, kw_only=True)
class Words:
    """What in commands, variables and set-up of runs may be a path.

    `bases` are the folders that paths start from, and whether runs take the files there as they are
    now: of the project they have frozen ones, but for paths from the root, and in the project
    itself. `started` are words that are programs whatever their names, `modules` those behind `-m`,
    `configs` folders of a Hydra application; `frozen` words are taken from the frozen code anyhow.
    """

    environ: Mapping[str, str]
    bases: dict[str, bool]
    found: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    configs: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)

    @classmethod
    def from_settings(
        cls, alike: Sequence[LaunchConfig], folders: Iterable[object], environ: Mapping[str, str]
    ) -> Words:
        """Return the words of runs that differ in their commands, and start in `folders`."""
        first = alike[0]
        own = {**first.cluster.env, **first.env}
        bases = dict.fromkeys(map(str, folders), first.runtime.cwd is WorkingFolder.project)
        # As a job sees them: `sbatch` was called where the launch was made.
        places = {"PWD": ".", "SLURM_SUBMIT_DIR": next(iter(bases))}
        words = cls(environ={**environ, **own, **places}, bases=bases)
        words.frozen.update(list_frozen_command_words(first))
        words.add_words_of_texts(f"{name}={value}" for name, value in own.items())
        words.add_words_of_texts((*first.cluster.setup, first.cluster.python or ""))
        for settings in alike:
            words.add_command(settings.command)
        words.use_named_folders_as_bases()
        return words

    def add_entry_point_modules(self, taken: Iterable[LaunchConfig]) -> None:
        """Take the modules of functions: if code is not frozen, they are the project's own."""
        tops = {(run.entry_point or "").partition(":")[0].partition(".")[0] for run in taken} - {""}
        self.modules |= tops | {f"{top}.py" for top in tops}

    def add_command(self, command: object) -> None:
        """Take the words of a command, and what it starts."""
        if not command:
            return
        given = list(map(str, command)) if isinstance(command, list | tuple) else [str(command)]
        self.add_words_of_texts(given)
        self.add_words_of_texts(
            f"{word} {folder}" for word, folder in pairwise(given) if _ENTERED.fullmatch(word)
        )
        with suppress(ConfigError):
            for each in list_inner_commands(split_command(command)):
                self.started.update({each[0], parse_invocation(each).script or ""})
                self._add_modules_and_configs(each)

    def _add_modules_and_configs(self, command: Sequence[str]) -> None:
        module = (parse_invocation(command).module or "").partition(".")[0]
        self.modules |= {module, f"{module}.py"} if module else set()
        for word, behind in zip(command, (*command[1:], ""), strict=True):
            if (named := _CONFIGS.match(word)) is not None:
                text = Template(named[1] or named[2] or behind).safe_substitute(self.environ)
                folders = re.split(r"[\[\],'\"]+", text)
                self.configs |= {part.removeprefix("file://") for part in folders} - {""}

    def use_named_folders_as_bases(self) -> None:
        """Take the named folders as bases, twice: a command may enter one, and then one in it."""
        entered = self.found if re.search(r"[$`]", "".join(self.entered)) else self.entered
        for _ in range(1 + bool(self.entered)):
            for word in self.found:
                for path, live in list(self.resolve_word_to_paths(word)):
                    if os.path.isdir(path):  # noqa: PTH112
                        self.bases[path] = self.bases.get(path, False) or (live and word in entered)

    def add_words_of_texts(self, texts: Iterable[str]) -> None:
        """Take these texts apart, with variables filled in; lines for a shell, too."""
        left = set(texts)
        while left:
            text = left.pop()
            if "$" in text:
                text = _DEFAULTED.sub(lambda found: self.environ.get(found[1], found[2]), text)
                text = Template(text).safe_substitute(self.environ)
            parts = {text, *text.split(), text.partition("=")[2], *text.split(",")}
            if text[:1] == "-" or "://" in text:
                parts.add(text[text.find("/", text.find("://") + 2) :])
            if re.search(r"[\s'\"\\<>|;&()`]", text):
                lexer = shlex.shlex(text.replace("`", " "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                with suppress(ValueError):  # an open quote
                    parts.update(lexer)
            names = {re.sub(r"[\"'\\]", "", name) for name in _ENTERED.findall(text)} - {""}
            self.entered |= {name if name[0] in "/~." else f"./{name}" for name in names}
            parts |= self.entered
            parts -= self.found
            new = {part for part in parts if "/" in part or part == ".." or has_source_suffix(part)}
            self.found |= new
            left |= new

    def resolve_word_to_paths(self, word: str) -> Iterator[tuple[str, bool]]:
        """Yield the paths that a word stands for, those that exist; whether runs take it there."""
        is_whole = word[:1] in "/~"
        for base, as_now in list(self.bases.items())[: 1 if is_whole else None]:
            live = is_whole or (as_now and word not in self.frozen)
            with suppress(OSError, ValueError, RuntimeError):  # it does not exist, or is no path
                path = os.path.join(base, Path(word).expanduser())  # noqa: PTH118
                if re.search(r"[*?\[]", word) and not os.path.lexists(path):
                    for name in islice(iglob(path), MOST_NAMES):  # noqa: PTH207
                        yield os.path.realpath(name), live
                else:
                    yield os.path.realpath(path, strict=True), live

    def find_programs(self) -> Iterator[tuple[str, bool]]:
        """Yield the programs, sources and settings that are named, by their real paths.

        With whether runs take them from there, also if the snapshot holds them.
        """
        seen: set[tuple[str, bool]] = set()
        words = [*self.found, *self.started, *self.modules]
        while words:
            word = words.pop()
            there = set(self.resolve_word_to_paths(word))
            if word in self.started and "/" not in word:
                found = shutil.which(word, path=self.environ.get("PATH"))
                there |= {(os.path.realpath(found), True)} if found else set()
            for path, live in there - seen:
                seen.add((path, live))
                if _is_program_or_source(path, given=word in self.started, module=word in self.modules):
                    yield path, live
                    before = len(self.found), dict(self.bases)
                    self._add_script_words(path, live=live)
                    if before != (len(self.found), self.bases):
                        words = [*self.found, *self.started, *self.modules]

    def find_hydra_config_folders(self) -> Iterator[tuple[str, bool]]:
        """Yield the folders of a Hydra application that are named, as `programs` does."""
        yield from (pair for word in self.configs for pair in self.resolve_word_to_paths(word))

    def _add_script_words(self, path: str, *, live: bool) -> None:
        text, starter = read_file_start_and_shebang(path)
        if path.endswith(_SHELLS) or starter.endswith(b"sh"):
            folder = os.path.dirname(path)  # noqa: PTH120
            lines = _OWN_FOLDER.sub(".", text.decode(errors="replace"))
            self.bases[folder] = self.bases.get(folder, False) or live
            self.add_words_of_texts(lines.splitlines())
            for command, _ in parse_shell_commands(lines):
                self._add_modules_and_configs(command)
            self.use_named_folders_as_bases()

    def list_pythonpath_folders(self) -> list[tuple[str, bool]]:
        """Return the folders of PYTHONPATH, in order; whether runs import from there."""
        told = [word for word in self.found if word.startswith("PYTHONPATH=")]
        texts = [self.environ.get("PYTHONPATH", ""), *(word.partition("=")[2] for word in sorted(told))]
        return list(self._list_importable_folders(part for text in texts for part in text.split(os.pathsep)))

    def find_editable_install_folders(self) -> Iterator[tuple[str, bool]]:
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
                        lines = read_regular_file(installed / name).decode().splitlines()
                        found += [os.path.join(installed, line) for line in lines if line.strip()]  # noqa: PTH118
                    elif name.endswith(".dist-info"):
                        about = json.loads(read_regular_file(installed / name / "direct_url.json"))
                        if about["dir_info"]["editable"] is True:
                            found.append(unquote(urlsplit(about["url"]).path))
            yield from self._list_importable_folders(found)

    def _list_importable_folders(self, found: Iterable[str]) -> Iterator[tuple[str, bool]]:
        ours = str(Path(__file__).parents[3])
        for text in found:
            for path, live in self.resolve_word_to_paths(text) if text else ():
                if path != ours and not path.endswith("-packages"):
                    yield path, live


def _is_program_or_source(path: str, *, given: bool, module: bool) -> bool:
    mode = os.stat(path).st_mode if os.path.exists(path) else 0  # noqa: PTH110, PTH116
    if stat.S_ISDIR(mode):
        return module or os.path.isfile(f"{path}/__main__.py")  # noqa: PTH113
    own = (mode & stat.S_IXUSR or given) and not _INTERPRETER.search(path)
    return stat.S_ISREG(mode) and (
        has_source_suffix(path) or bool(own and not path.startswith(_OF_THE_SYSTEM))
    )


@lru_cache(maxsize=16)
def read_file_start_and_shebang(path: str) -> tuple[bytes, bytes]:
    """Return the beginning of a file, and the line `#!` in it; both empty if it is no such file."""
    try:
        with open_regular_file(path) as file:
            text = file.read(_MOST_SEARCHED)
    except OSError:
        return b"", b""
    return text, text.partition(b"\n")[0] if text[:2] == b"#!" else b""
