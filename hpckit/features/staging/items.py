"""What is staged, as a configuration says it, and as a launch has frozen it. Pure."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.node_setup import (
    SQUASHFS_SUFFIXES,
    TAR_SUFFIXES,
    Data,
    EnvironmentSource,
    KeptData,
    PackedEnvironment,
)
from hpckit.model.plain import from_plain
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field_names

_TAKEN = ("environment", "hf", "mnt", "out")
"""Names that the folder of a run on a node has already."""
_NAME = lazy_pattern(r"[A-Za-z][A-Za-z0-9_]*\Z")


class Kind(StrEnum):
    """What a source is."""

    file = "file"
    folder = "folder"
    s3 = "s3"
    hf = "hf"


class How(StrEnum):
    """What becomes of a source on a node."""

    auto = "auto"
    """a `.tar` is extracted, a `.sqsh` or `.squashfs` mounted, all else copied"""
    copy = "copy"
    """a copy as it is"""
    extract = "extract"
    """a folder with what the tar file has"""
    mount = "mount"
    """a folder, by squashfuse or the kernel"""
    link = "link"
    """no copy: where the source is"""


class Verify(StrEnum):
    """By what a copy is checked."""

    auto = "auto"
    """sha256 up to 50 GB, then crc32, at half the cost"""
    size = "size"
    """its size alone"""
    crc32 = "crc32"
    """finds what a disk or a network has changed"""
    sha256 = "sha256"
    """finds what anybody has changed"""


class Needed(StrEnum):
    """When it is needed."""

    start = "start"
    """ranks wait for it"""
    background = "background"
    """ranks start meanwhile; `run.data("NAME")` waits"""


_CHOICES: Mapping[str, type[StrEnum]] = {
    "how": How,
    "verify": Verify,
    "needed": Needed,
    "keep": KeptData,
    "environment": PackedEnvironment,
    "environment_from": EnvironmentSource,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageItem:
    """One entry of `data.stage`."""

    name: str
    """Its name, in `$HPCKIT_DATA_NAME` and `run.data`."""
    source: str
    """A file or folder, `s3://BUCKET/KEY`, or `hf://ORG/NAME@REVISION`."""
    how: How = How.auto
    """What becomes of it on a node."""
    verify: Verify = Verify.auto
    """By what a copy is checked."""
    needed: Needed = Needed.start
    """When it is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutItem:
    """One entry of `data.out`: a folder of the node, and where it goes."""

    name: str
    """Its name, in `$HPCKIT_OUT_NAME`."""
    source: str | None = None
    """Folder below the run's own on the node. Null: of its name."""
    to: str | None = None
    """Folder below the run's, which gets one for each node. Null: `out/NAME`."""
    every_s: float = 300.0
    """New files are copied so often, and at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSource:
    """A source as it was at launch.

    `place` is its absolute path, or its URL with the commit of an `hf://`. `digest` is that of the
    listing of a folder: names, sizes and times of its files.
    """

    place: str
    kind: Kind
    bytes: int
    files: int = 1
    mtime_ns: int = 0
    digest: str = ""
    commit: str = ""
    endpoint: str = ""

    @property
    def id(self) -> str:
        """What copies of this very content are known by."""
        counted = [self.place, self.bytes, self.mtime_ns, self.digest, self.commit]
        return hashlib.sha256(json.dumps(counted).encode()).hexdigest()[:12]

    @property
    def base_name(self) -> str:
        """The name of the copy."""
        if self.kind is Kind.hf:
            return "models--" + self.place.removeprefix("hf://").partition("@")[0].replace("/", "--")
        return self.place.rstrip("/").rpartition("/")[2]


def read_items(config: Mapping[str, Any]) -> tuple[Data, tuple[StageItem, ...], tuple[OutItem, ...]]:
    """Return what a configuration stages in and out; raises ConfigError."""
    settings: Data = _parse("data", config["data"], Data, field_names(Data))
    for key in ("cache_gb", "margin_gb"):
        if not getattr(settings, key) >= 0:
            raise ConfigError(f"data.{key} is {getattr(settings, key):g}; it must be 0 or more")
    stage = tuple(_parse_entries("data.stage", settings.stage, StageItem))
    for item in stage:
        if not item.source:
            hint = "name a file, a folder or a URL"
            raise ConfigError(f"data.stage.{item.name}.source is empty", hint=hint)
    out = tuple(_parse_entries("data.out", settings.out, OutItem))
    for each in out:
        _check_out_item(each)
    places = [each.to or f"out/{each.name}" for each in out]
    if len({*map(posixpath.normpath, places)}) < len(places):
        raise ConfigError("two items of data.out go to one folder", hint="give each another `to`")
    return settings, stage, out


def _parse_entries(section: str, entries: Mapping[str, Any], kind: Any) -> Iterator[Any]:
    known = [name for name in field_names(kind) if name != "name"]
    seen: dict[str, str] = {}
    for name, value in entries.items():
        key = f"{section}.{name}"
        if not _NAME.match(name):
            hint = "use letters, digits and _, beginning with a letter"
            raise ConfigError(f"{key}: {name!r} is not a name for a variable", hint=hint)
        if name.lower() in _TAKEN:
            hint = f"any other name than {', '.join(_TAKEN)}"
            raise ConfigError(f"{key}: hpckit itself uses this name on nodes", hint=hint)
        if (variable := name.upper()) in seen:
            words = f"{key} and {seen[variable]} are one variable, in upper case"
            raise ConfigError(words, hint="give them names that differ in more than case")
        seen[variable] = key
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} is {value!r}, not a mapping", hint=f"keys: {', '.join(known)}")
        yield _parse(key, value, kind, known, name=name)


def _parse(section: str, given: Mapping[str, Any], kind: Any, known: Sequence[str], **more: str) -> Any:
    keys = f"keys: {', '.join(known)}"
    for key in given:
        if key not in known:
            near = "".join(f", did you mean {name}?" for name in get_close_matches(str(key), known, 1))
            raise ConfigError(f"{section}.{key}: there is no such key{near}", hint=keys)
    try:
        return from_plain(kind, {**given, **more})
    except (TypeError, ValueError) as error:
        key = str(error).partition(":")[0]
        if key in _CHOICES:
            hint = f"one of {', '.join(_CHOICES[key])}"
            raise ConfigError(f"{section}.{key} is {given[key]!r}", hint=hint) from error
        hint = "source is needed: a path or URL, as text" if more else keys
        raise ConfigError(f"{section}.{error}", hint=hint) from error


def _check_out_item(item: OutItem) -> None:
    for key, path in (("source", item.source), ("to", item.to)):
        if path is not None and (not path or path.startswith("/") or ".." in path.split("/")):
            hint = "a path below the run's folder on the node (source) or below the run's folder (to)"
            raise ConfigError(f"data.out.{item.name}.{key} is {path!r}", hint=hint)
    if item.every_s <= 0:
        raise ConfigError(f"data.out.{item.name}.every_s is {item.every_s:g}; it must be more than 0")


def choose_how(item: StageItem, source: FrozenSource) -> How:
    """Return what becomes of a source; raises ConfigError if that cannot be."""
    name = source.place.lower() if source.kind is Kind.file else ""
    is_tar, is_squashed = name.endswith(TAR_SUFFIXES), name.endswith(SQUASHFS_SUFFIXES)
    if item.how is How.auto:
        return How.extract if is_tar else How.mount if is_squashed else How.copy
    fits, needs = {
        How.copy: (True, ""),
        How.extract: (is_tar, f"a file {', '.join(TAR_SUFFIXES)}"),
        How.mount: (is_squashed, f"a file {', '.join(SQUASHFS_SUFFIXES)}"),
        How.link: (source.kind in (Kind.file, Kind.folder), "a file or folder"),
    }[item.how]
    if not fits:
        words = f"data.stage.{item.name}.how={item.how} needs {needs}, and the source is {item.source}"
        raise ConfigError(words, hint="leave how out, or take how=copy")
    return item.how


def strip_tar_suffix(name: str) -> str:
    """Return the name of the folder that a tar file is extracted to."""
    end = next((end for end in TAR_SUFFIXES if name.lower().endswith(end)), "")
    return name[: len(name) - len(end)] or name
