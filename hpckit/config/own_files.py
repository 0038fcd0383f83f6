"""What stands in the user's own configuration files, read as text and as YAML.

Responsible for finding the file and line behind something that Hydra's messages do not place; it
must not compose, nor word a message.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpckit.config.search_path import shipped_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultsChoice:
    """A line of a defaults list that chooses an option of a group."""

    file: Path
    line: int
    option: str

    @property
    def place(self) -> str:
        """Where it stands, for a message."""
        return f"{self.file}, line {self.line}"


def user_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders of configuration that are the user's."""
    return tuple(folder for folder in folders if folder != shipped_folder())


def misnamed(folders: Sequence[Path], option: str | None = None) -> Path | None:
    """Return a file that ends in .yml, which Hydra does not read, and 1.4 refuses to see at all.

    `option` is what it has to be, such as `experiment/mine`; null for any.
    """
    pattern = "**/*.yml" if option is None else f"{glob.escape(option)}.yml"
    found = (file for folder in user_folders(folders) for file in sorted(folder.glob(pattern)))
    return next(found, None)


def undecodable(folders: Sequence[Path]) -> Path | None:
    """Return the first of the user's files that is not text in UTF-8."""
    for file in _files(folders):
        try:
            _text(file)
        except UnicodeDecodeError:
            return file
    return None


def choosing(
    folders: Sequence[Path], likely: Sequence[str], group: str, option: str | None = None
) -> DefaultsChoice | None:
    """Return the first line of the user's files that chooses of this group, in any way.

    `likely` are files to look into first; `option` is what it has to choose, null for any.
    """
    wanted = r"[^\s'\"#]+" if option is None else re.escape(option)
    last = re.escape(group.rpartition("/")[2])
    line = re.compile(rf"\s*-\s*(?:override\s+)?/?{last}\s*:\s*['\"]?({wanted})['\"]?\s*(?:#.*)?\Z")
    for file in sorted(_files(folders), key=lambda one: not _is_among(one, likely)):
        try:
            lines = _text(file).splitlines()
        except UnicodeDecodeError:
            continue
        for number, text in enumerate(lines, start=1):
            if match := line.match(text):
                return DefaultsChoice(file=file, line=number, option=match[1])
    return None


def document(file: Path) -> Any:
    """Return what a file holds as YAML; null where that cannot be told."""
    try:
        return yaml.safe_load(_text(file))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def is_of_the_root(file: Path, folders: Sequence[Path]) -> bool:
    """Whether the keys of a file come out at the root of the configuration."""
    return file.parent in folders or "@package _global_" in _text(file)


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in user_folders(folders):
        yield from sorted(folder.rglob("*.yaml"))


def _is_among(file: Path, likely: Sequence[str]) -> bool:
    return any(str(file).endswith(f"/{name.removesuffix('.yaml')}.yaml") for name in likely)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError:
        return ""
