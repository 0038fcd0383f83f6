"""Finds the file and line in the user's own configuration that Hydra's messages do not name."""

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
        """File and line, for a message."""
        return f"{self.file}, line {self.line}"


def user_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the configuration folders that are the user's."""
    return tuple(folder for folder in folders if folder != shipped_folder())


def misnamed(folders: Sequence[Path], option: str | None = None) -> Path | None:
    """Return a file ending in .yml, which Hydra does not read, and 1.4 does not even list.

    `option` is the option it should provide, such as `experiment/mine`; None for any.
    """
    pattern = "**/*.yml" if option is None else f"{glob.escape(option)}.yml"
    found = (file for folder in user_folders(folders) for file in sorted(folder.glob(pattern)))
    return next(found, None)


def undecodable(folders: Sequence[Path], part: bytes) -> Path | None:
    """Return the user's file that is not UTF-8 text and has these bytes, which were read of it.

    Others that are not UTF-8 either may not have been read.
    """
    for file in _files(folders):
        try:
            _text(file)
        except UnicodeDecodeError as error:
            if part in error.object:
                return file
    return None


def choosing(
    folders: Sequence[Path], likely: Sequence[str], group: str, option: str | None = None
) -> DefaultsChoice | None:
    """Return the first line in the user's files that selects from this group, in any form.

    `likely` are files to search first; `option` is what the line has to select, None for any.
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
    """Return the parsed YAML of a file; None if it cannot be read or parsed."""
    try:
        return yaml.safe_load(_text(file))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def is_of_the_root(file: Path, folders: Sequence[Path]) -> bool:
    """Return whether the keys of a file end up at the root of the configuration."""
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
