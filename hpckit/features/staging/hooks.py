"""Where staging takes part in a run: the functions that the core finds by name (`hpckit.run_features`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import ConfigError, NodeError, RunError
from hpckit.features.staging.compile_caches import CompileCaches
from hpckit.features.staging.environment import FOLDER, Packed, find_environment_folders, pack_environment
from hpckit.features.staging.environment_start import NodeEnvironment
from hpckit.features.staging.items import How, read_items
from hpckit.features.staging.lock_files import (
    LockedEnvironment,
    build_locked_environment,
    find_locked_environment,
)
from hpckit.features.staging.node import NodeData, read_frozen_sources
from hpckit.features.staging.place import NodeDataError, choose_folder, claim_for_node, expand_variables
from hpckit.features.staging.plan import Rates, assign_providers, is_tree_better
from hpckit.features.staging.sources import check_data_dir, freeze_sources
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import (
    ContainerRuntime,
    Data,
    EnvironmentSource,
    KeptData,
    PackedEnvironment,
    find_data_settings,
)
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import LaunchPlan
from hpckit.record.launches import Launch
from hpckit.record.snapshot.environment import capture_python_environment
from hpckit.record.store import PRIVATE_FOLDER, read_json_object
from hpckit.run_features import NodeContext
from hpckit.runtime.environ import SATELLITE, copy_environment, find_node_name, rank_info


def freeze_files(
    runs: Iterable[tuple[LaunchConfig, Mapping[str, Any]]],
    folder: Path,
    cwd: Path,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the text of files to freeze in a launch folder, by name; raises ConfigError."""
    return {"stage.json": json.dumps(freeze_sources(runs, folder, cwd, environ), indent=1) + "\n"}


def prepare_node(context: NodeContext) -> NodeData:
    """Return what brings a run's data to a node."""
    return NodeData(context)


def list_mounts(
    *,
    launch: Launch,
    index: int,  # noqa: ARG001  # of the hook's form
    settings: LaunchConfig,  # noqa: ARG001
    config: Mapping[str, Any],
) -> list[str]:
    """Return what a container needs of its node: sources, and `data.dir`, which has to be there before."""
    data, items, _ = read_items(config)
    sources = read_frozen_sources(launch.paths)
    folder = expand_variables(data.dir or "", copy_environment())
    if folder:
        with contextlib.suppress(OSError):  # said when it is opened
            Path(folder).expanduser().mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    return [str(Path(folder or "").expanduser()), *(sources[item.source].place for item in items)]


def choose_providers(
    launch: Launch, config: Mapping[str, Any], nodes: int, ready: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return from which of `nodes` nodes each gets its data, as places; none: from its source."""
    _, items, _ = read_items(config)
    sources = read_frozen_sources(launch.paths)
    size = sum(sources[item.source].bytes for item in items if item.how is not How.link)
    unknown = any(not sources[item.source].bytes for item in items)
    if ready or unknown or is_tree_better(size, nodes, Rates()):
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
    source = read_items(config)[0].environment_from
    if source is EnvironmentSource.python:
        return None
    if settings.cluster.kind is not ClusterKind.slurm:
        raise ConfigError(
            f"data.environment_from={source} builds an environment for the nodes of a cluster",
            hint="on this machine activate your own, or: uv run hpckit launch …",
        )
    return find_locked_environment(source, cwd, outputs)


def pack_for_launch(*, plan: LaunchPlan, context: Context) -> tuple[dict[str, object], dict[str, Path]]:
    """Pack the environment that a launch wants at its nodes.

    Returns what its environment.json says of that, and the files it shares with other launches.
    Raises UsageError.
    """
    found = [(run.settings, run.config, find_data_settings(run.config) or Data()) for run in plan.runs]
    for key in ("environment", "environment_from"):
        if len(values := {str(getattr(data, key)) for _, _, data in found}) > 1:
            words = ", ".join(sorted(values))
            raise ConfigError(f"data.{key} differs between runs: {words}", hint="choose one of them")
    settings, config, data = found[0]
    outputs = Path(plan.folder).parent
    locked = _find_locked_environment(settings, config, outputs, context.cwd)
    wanted = locked is not None or data.environment is not PackedEnvironment.none
    if wanted and any(settings.container.runtime is not ContainerRuntime.none for settings, _, _ in found):
        raise ConfigError(
            "data.environment cannot be combined with a container: the image has its own environment",
            hint="leave out data.environment and data.environment_from, or choose container=none",
        )
    packs = data.environment is not PackedEnvironment.none
    if packs:
        check_data_dir(data.dir, settings, Path(plan.folder))
    facts, files = dict[str, object](), dict[str, Path]()
    if locked is not None and str(locked.python) == plan.python:
        build_locked_environment(locked, context)
        facts |= _read_built_environment(locked, context)
        files[locked.lock.name] = locked.kept_lock
    if packs:
        folders = find_environment_folders(plan.python, context.environ)
        packed = pack_environment(folders, outputs, data.environment, context)
        facts["packed"] = to_plain(packed)
        files[packed.file] = outputs / FOLDER / packed.file
    return facts, files


def _read_built_environment(locked: LockedEnvironment, context: Context) -> dict[str, object]:
    facts = capture_python_environment(str(locked.python), context.environ)
    if facts is None:
        raise ConfigError(
            f"{locked.lock} has no hpckit, which starts runs on the nodes",
            hint="add it to the project and its lock file: uv add hpckit-slurm",
        )
    return facts


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
    data = find_data_settings(config) or Data()
    if settings.container.runtime is not ContainerRuntime.none:
        return words
    if data.environment is not PackedEnvironment.none:
        packed = from_plain(Packed, read_json_object(launch.paths.environment)["packed"])
        folder = _open_node_folder(data, settings, environ, packed.size_bytes)
        environment = NodeEnvironment(
            packed=packed,
            source=launch.folder / packed.file,
            folder=folder / FOLDER / data.keep.value,
            data=data,
        )
        words = environment.start(words, environ)
    with contextlib.suppress(RunError, OSError):  # without a folder caches are where they usually are
        folder = _open_node_folder(data, settings, environ, 0) / "caches"
        name = f"{launch.id}.{index}"
        caches = CompileCaches(folder=folder / name, carried=launch.paths.run(index).compile_caches)
        saves = rank_info(environ).rank == 0 and SATELLITE not in environ
        own = {**launch.cluster.env, **settings.env}
        caches.begin(environ, own, saves=saves, keeps=data.keep is KeptData.cache)
    return words


def _open_node_folder(data: Data, settings: LaunchConfig, environ: Mapping[str, str], needed: int) -> Path:
    node = find_node_name()
    try:
        folder = choose_folder(data.dir, settings.cluster.node_scratch, environ, needed)
        return claim_for_node(folder, node)
    except NodeDataError as error:
        raise NodeError(
            f"no folder for its environment: {error}",
            cause=error.cause,
            hint="name folders on the node's own disk: cluster.node_scratch or data.dir",
        ) from error
