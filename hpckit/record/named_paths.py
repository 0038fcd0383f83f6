"""Files and folders that a configuration or a command names, as this machine has them.

Responsible for what will be missing where the run starts; it must not open any of them. Nodes may
see other file systems than this machine: all of it is only warned about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpckit.model.finding import Finding, warning

_READ = frozenset(
    {"checkpoint", "ckpt", "container", "corpus", "data", "dataset", "datasets", "file", "image"}
    | {"input", "inputs", "path", "paths", "pretrained", "tokenizer", "train", "val", "weights"}
)
_WRITTEN = frozenset({"cache", "log", "logs", "out", "output", "results", "save", "tmp"})
_OURS = frozenset(
    {"cluster", "code", "command", "entry_point", "env", "name", "output_dir", "recovery"}
    | {"resources", "runtime", "chaos", "budget", "seed", "checkpoint"}
)
_PATTERN = "*?{$\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFolder:
    """The project's folder that a run starts in; `frozen` is whether nodes have a path of it."""

    folder: Path
    frozen: Callable[[Path], bool]


def configured_paths(config: Mapping[str, Any], project: ProjectFolder) -> Iterator[Finding]:
    """Yield warnings for paths under keys that sound like something to read."""
    for key, text in _texts({name: one for name, one in config.items() if name not in _OURS}, ()):
        words = {word for part in key for word in part.lower().replace("-", "_").split("_")}
        if words.isdisjoint(_READ) or not words.isdisjoint(_WRITTEN):
            continue
        if not any(letter in text for letter in _PATTERN):
            yield from _missing(".".join(key), text, project)


def commanded_paths(words: Sequence[str], project: ProjectFolder) -> Iterator[Finding]:
    """Yield warnings for what a command names in the project, and nodes will not have."""
    for word in words[1:]:
        text = word.rpartition("=")[2] if word.startswith("-") else word
        if text and not Path(text).is_absolute() and not text.startswith("-"):
            yield from _ignored("command", text, project)


def _missing(key: str, text: str, project: ProjectFolder) -> Iterator[Finding]:
    absolute = Path(text).is_absolute()
    if absolute and not Path(text).exists():
        yield warning(
            key,
            text,
            f"{key} names {text}, which does not exist on this machine",
            "look for a typing mistake; the nodes may see more than this machine",
        )
    elif not absolute:
        yield from _ignored(key, text, project)
        looks_like_one = "/" in text and Path(text).suffix and "://" not in text
        if looks_like_one and not (project.folder / text).exists():
            yield warning(
                key,
                text,
                f"{key} names {text}, which does not exist in {project.folder}, where the run "
                "starts",
                "look for a typing mistake",
            )


def _ignored(key: str, text: str, project: ProjectFolder) -> Iterator[Finding]:
    path = project.folder / text
    try:
        there = path.exists()
    except (OSError, ValueError):  # a text too long, or with what no path holds
        return
    if there and not project.frozen(path):
        yield warning(
            key,
            text,
            f"{text} is in {project.folder}, but not part of the frozen code: git ignores it, and "
            "the run will not find it",
            f"give its whole path, {path}; or take it out of .gitignore",
        )


def _texts(value: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        if len(value) > 1:
            yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, (*key, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
