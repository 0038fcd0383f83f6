"""Looks at sources when a launch is made, and again on the node that reads them. Copies nothing.

No sum is computed here: that would read all data once more. The first node that reads a source computes
the sums of its blocks, and all others check theirs by these.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.staging.items import FrozenSource, Kind, StageItem, choose_how, read_items
from hpckit.features.staging.listing import Listing, SourceError, list_file, list_folder
from hpckit.features.staging.place import expand_variables, find_shared_file_system
from hpckit.features.staging.remote import inspect_object_source, resolve_hub_source
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain

ConfiguredRun = tuple[LaunchConfig, Mapping[str, Any]]
"""The settings of a run, and its whole configuration."""


def freeze_sources(
    runs: Iterable[ConfiguredRun], folder: Path, cwd: Path, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return what `stage.json` has: each source by its text, as it is now; raises ConfigError."""
    found: dict[str, FrozenSource] = {}
    for settings, config in runs:
        data, items, outs = read_items(config)
        if items or outs or data.dir is not None:
            check_data_dir(data.dir, settings, folder, environ)
        for item in items:
            if item.source not in found:
                found[item.source] = _inspect_source(item, cwd, environ)
            choose_how(item, found[item.source])
            _refuse_dir_beside_source(data.dir, item, found[item.source])
    return {"v": 1, "sources": {text: to_plain(source) for text, source in found.items()}}


def _inspect_source(item: StageItem, cwd: Path, environ: Mapping[str, str]) -> FrozenSource:
    if item.source.startswith("hf://"):
        return resolve_hub_source(item.source, environ)
    if item.source.startswith("s3://"):
        return inspect_object_source(item.source, environ)
    path = Path(os.path.realpath(cwd / Path(item.source).expanduser()))
    try:
        return read_source(path)[0]
    except SourceError as error:
        problem = "does not exist" if isinstance(error.__cause__, FileNotFoundError) else str(error)
        hint = "a file or folder that all nodes see, s3://BUCKET/KEY, or hf://ORG/NAME@REVISION"
        raise ConfigError(f"data.stage.{item.name}.source: {path} {problem}", hint=hint) from error


def read_source(path: Path) -> tuple[FrozenSource, Listing]:
    """Return a file or folder as it is now; raises SourceError."""
    try:
        if path.is_dir():
            listing, digest = list_folder(path, path.name)
            kind, time = Kind.folder, 0
        else:
            listing, digest = list_file(path), ""
            kind, time = Kind.file, path.stat().st_mtime_ns
    except OSError as error:
        raise SourceError(f"cannot be read: {error}") from error
    size, files = listing.bytes, len(listing.entries)
    source = FrozenSource(place=str(path), kind=kind, bytes=size, files=files, mtime_ns=time, digest=digest)
    return source, listing


def check_data_dir(
    text: str | None, settings: LaunchConfig, folder: Path, environ: Mapping[str, str]
) -> None:
    """Raise ConfigError for a data.dir that cannot be a node's own; what only a node knows is left to it."""
    if text is None:
        if not settings.cluster.node_scratch:
            hint = "name a folder on the nodes' own disks: data.dir=/local/$USER"
            raise ConfigError("data.dir is not set, and cluster.node_scratch has no folders", hint=hint)
        return
    if settings.cluster.kind is not ClusterKind.slurm and expand_variables(text, environ) is None:
        words = f"data.dir={text} names a variable that this machine does not have"
        raise ConfigError(words, hint="export it, or name a folder")
    if not text.startswith(("/", "$", "~")):
        raise ConfigError(f"data.dir={text} is not absolute", hint="for example data.dir=/local/$USER")
    if text.startswith("$"):
        return
    path = Path(text).expanduser()
    shared = find_shared_file_system(path) if settings.cluster.kind is ClusterKind.slurm else None
    if path.is_relative_to(folder.parent):
        shared = "the folder of launches, which all nodes share"
    if shared is not None:
        hint = "name a folder on the nodes' own disks, such as data.dir=/local/$USER or data.dir=$TMPDIR"
        raise ConfigError(f"data.dir={text} is on {shared}: all nodes would write the same files", hint=hint)


def _refuse_dir_beside_source(text: str | None, item: StageItem, source: FrozenSource) -> None:
    if text is None or source.kind not in (Kind.file, Kind.folder):
        return
    path, place = Path(text), Path(source.place)
    if path.is_relative_to(place) or (path == place.parent and source.kind is Kind.folder):
        words = f"data.dir={text} is where the source of data.stage.{item.name} is"
        raise ConfigError(words, hint="name a folder on the nodes' own disks")
