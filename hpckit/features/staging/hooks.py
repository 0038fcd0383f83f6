"""Where staging takes part in a run: the functions that the core finds by name (`hpckit.run_features`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import ConfigError, NodeError
from hpckit.features.staging.compile_caches import CompileCaches
from hpckit.features.staging.environment import (
    FOLDER,
    Packed,
    find_environment_folders,
    find_squashfs_packer,
    pack_environment,
)
from hpckit.features.staging.environment_start import NodeEnvironment
from hpckit.features.staging.items import FrozenSource, How, read_items
from hpckit.features.staging.lock_files import (
    LockedEnvironment,
    build_locked_environment,
    find_installer,
    find_locked_environment,
)
from hpckit.features.staging.node import NodeData, read_frozen_sources
from hpckit.features.staging.place import (
    NodeDataError,
    choose_folder,
    claim_for_node,
    expand_variables,
    find_cause,
)
from hpckit.features.staging.sources import ConfiguredRun, check_data_dir, freeze_sources
from hpckit.features.staging.transfer import assign_providers, is_tree_better
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import (
    ContainerRuntime,
    Data,
    EnvironmentSource,
    PackedEnvironment,
    has_data_settings,
)
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import LaunchPlan
from hpckit.record.launches import Launch
from hpckit.record.snapshot.environment import capture_python_environment
from hpckit.record.store import read_json_object
from hpckit.run_features import NodeContext
from hpckit.runtime.environ import SATELLITE, copy_environment, find_node_name, rank_info


def freeze_files(
    runs: Iterable[ConfiguredRun], folder: Path, cwd: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the text of files to freeze in a launch folder, by name; raises ConfigError."""
    distinct = dict[tuple[str, ContainerRuntime], ConfiguredRun]()
    for settings, config in runs:
        section = config["data"] if has_data_settings(config) else None
        distinct.setdefault((str(section), settings.container.runtime), (settings, config))
    _check_environment([*distinct.values()], folder, cwd, environ)
    users = [run for run in distinct.values() if has_data_settings(run[1])]
    return {"stage.json": json.dumps(freeze_sources(users, folder, cwd, environ), indent=1) + "\n"}


def _check_environment(
    runs: Sequence[ConfiguredRun], folder: Path, cwd: Path, environ: Mapping[str, str]
) -> None:
    """Raise ConfigError for an environment that a launch could not make, pack or bring to nodes."""
    found = [_read_data_settings(config) for _, config in runs]
    for key in ("environment", "environment_from"):
        if len(values := {str(getattr(data, key)) for data in found}) > 1:
            words = ", ".join(sorted(values))
            raise ConfigError(f"data.{key} differs between runs: {words}", hint="choose one of them")
    data, (settings, config) = found[0], runs[0]
    packs, locks = data.environment is not PackedEnvironment.none, data.environment_from
    if not packs and locks is EnvironmentSource.python:
        return
    if any(settings.container.runtime is not ContainerRuntime.none for settings, _ in runs):
        words = "data.environment cannot be combined with a container: the image has its own environment"
        hint = "leave out data.environment and data.environment_from, or choose container=none"
        raise ConfigError(words, hint=hint)
    locked = _find_locked_environment(settings, config, folder.parent, cwd)
    if locked is not None:
        find_installer(locked, environ)
    if packs:
        check_data_dir(data.dir, settings, folder, environ)
        find_squashfs_packer(data.environment, environ.get("PATH", os.defpath))
    if packs and locked is None:
        find_environment_folders(settings.cluster.python or sys.executable, environ)


def _read_data_settings(config: Mapping[str, Any]) -> Data:
    """Return what a run wants of its nodes, with the defaults where it has no such section."""
    return read_items(config)[0] if has_data_settings(config) else Data()


def describe_inputs(*, config: Mapping[str, Any], read: Callable[[str], str]) -> dict[str, str]:
    """Return the sources of a run, each with what it was; `read` gives a frozen file of the launch."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        frozen = _read_sources(read("stage.json"))
        named = {item.source for item in read_items(config)[1]}
        return {text: frozen[text] for text in sorted(named & frozen.keys())}
    return {}


@lru_cache(maxsize=2)
def _read_sources(text: str) -> Mapping[str, str]:
    return {name: _describe_source(source) for name, source in json.loads(text)["sources"].items()}


def _describe_source(record: Mapping[str, Any]) -> str:
    source = from_plain(FrozenSource, record)
    words = (f"{source.bytes} bytes", source.id, source.commit, source.endpoint)
    return ", ".join(filter(None, words))


def prepare_node(context: NodeContext) -> NodeData:
    """Return what brings a run's data to a node."""
    return NodeData(context)


def list_mounts(*, launch: Launch, config: Mapping[str, Any], **_: object) -> list[str]:
    """Return what a container needs of its node: sources, and `data.dir`, which has to be there before."""
    data, items = read_items(config)[:2]
    sources = read_frozen_sources(launch.paths)
    folder = expand_variables(data.dir or "", copy_environment())
    if folder:
        with _tell_cause():  # a container without privilege cannot tell root's folders from others'
            choose_folder(folder, [], {}, 0)
    return [str(Path(folder or "").expanduser()), *(sources[item.source].place for item in items)]


def choose_providers(
    launch: Launch, config: Mapping[str, Any], nodes: int, ready: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return from which of `nodes` nodes each gets its data, as places; none: from its source."""
    _, items, _ = read_items(config)
    sources = read_frozen_sources(launch.paths)
    sizes = [sources[item.source].bytes for item in items if item.how is not How.link]
    if ready or 0 in sizes or is_tree_better(sum(sizes), nodes):  # 0: unknown
        return assign_providers(nodes, ready)
    return ((),) * nodes


def choose_python(
    *, settings: LaunchConfig, config: Mapping[str, Any], outputs: Path, cwd: Path
) -> str | None:
    """Return the Python that a launch builds from a lock file; None if it takes one that is there.

    Raises ConfigError.
    """
    locked = _find_locked_environment(settings, config, outputs, cwd)
    return None if locked is None else str(locked.python)


def _find_locked_environment(
    settings: LaunchConfig, config: Mapping[str, Any], outputs: Path, cwd: Path
) -> LockedEnvironment | None:
    source = _read_data_settings(config).environment_from
    if source is EnvironmentSource.python:
        return None
    if settings.cluster.kind is not ClusterKind.slurm:
        words = f"data.environment_from={source} builds an environment for the nodes of a cluster"
        raise ConfigError(words, hint="on this machine activate your own, or: uv run hpckit launch …")
    return find_locked_environment(source, cwd, outputs)


def pack_for_launch(*, plan: LaunchPlan, context: Context) -> tuple[dict[str, object], dict[str, Path]]:
    """Pack the environment that a launch wants at its nodes.

    Returns what its environment.json says of that, and the files it shares with other launches.
    Raises UsageError.
    """
    run, outputs = plan.runs[0], Path(plan.folder).parent
    data = _read_data_settings(run.config)  # all runs have one environment: `freeze_files`
    locked = _find_locked_environment(run.settings, run.config, outputs, context.cwd)
    facts, files = dict[str, object](), dict[str, Path]()
    if locked is not None and str(locked.python) == plan.python:
        build_locked_environment(locked, context)
        found = capture_python_environment(plan.python, context.environ)
        if found is None:
            hint = "add it to the project and its lock file: uv add hpckit-slurm"
            raise ConfigError(f"{locked.lock} has no hpckit, which starts runs on the nodes", hint=hint)
        facts |= found
        files[locked.lock.name] = locked.kept_lock
    if data.environment is not PackedEnvironment.none:
        folders = find_environment_folders(plan.python, context.environ)
        packed = pack_environment(folders, outputs, data.environment, context)
        facts["packed"] = to_plain(packed)
        files[packed.file] = outputs / FOLDER / packed.file
    return facts, files


def start_agent(
    *,
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    config: Mapping[str, Any],
    words: list[str],
    environ: dict[str, str],
    **_: object,
) -> list[str]:
    """Bring to this node what the run wants there; return the words that start its agent from it."""
    if settings.container.runtime is not ContainerRuntime.none:
        return words
    data, owner = read_items(config)[0], {"launch": str(launch.folder), "run": index}
    if data.environment is not PackedEnvironment.none:
        packed = from_plain(Packed, read_json_object(launch.paths.environment)["packed"])
        with _tell_cause():
            folder = _open_node_folder(data, settings, environ, packed.size_bytes)
            environment = NodeEnvironment(
                packed=packed, launch=launch.folder, folder=folder, data=data, owner=owner
            )
            words = environment.start(words, environ)
    with contextlib.suppress(NodeDataError, OSError):  # without a folder caches are where they usually are
        folder = _open_node_folder(data, settings, environ, 0) / "caches" / f"{launch.id}.{index}"
        caches = CompileCaches(folder=folder, carried=launch.paths.run(index).compile_caches, owner=owner)
        saves = rank_info(environ).rank == 0 and SATELLITE not in environ
        caches.begin(environ, {**launch.cluster.env, **settings.env}, saves=saves)
    return words


def _open_node_folder(data: Data, settings: LaunchConfig, environ: Mapping[str, str], needed: int) -> Path:
    folder = choose_folder(data.dir, settings.cluster.node_scratch, environ, needed)
    return claim_for_node(folder, find_node_name())


@contextlib.contextmanager
def _tell_cause() -> Iterator[None]:
    """Let the supervisor know why this node cannot have its data."""
    try:
        yield
    except (NodeDataError, OSError) as error:
        words, cause = f"cannot have its environment: {error}", find_cause(error)
        folders = "cluster.node_scratch and data.dir name folders on the node's own disk"
        raise NodeError(words, cause=cause, hint=f"{folders}; data.margin_gb stays free") from error
