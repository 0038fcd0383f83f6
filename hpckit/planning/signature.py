"""The identity of a computation: a hash of the configuration without what does not matter.

Two runs with the same signature compute the same thing, wherever and under whatever name they run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.model.node_setup import SQUASHFS_SUFFIXES, TAR_SUFFIXES, has_data_settings
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.search import Search
from hpckit.values import field_names

LENGTH = 16
"""Hex digits kept: 64 bits, so that a million runs have no collision by chance."""

IGNORED_KEYS = frozenset(
    {"name", "output_dir", "cluster", "recovery", "checkpoint", "runtime", "code", "chaos"}
    | {"budget", "container", "notify", "observe", "preflight", "resources", "stages", "sweep", "tracker"}
)
COUNTED_RESOURCES = ("nodes", "tasks_per_node")
"""Of `resources`, these keys and the GPUs set the number and kind of ranks and so the result."""
COUNTED_CLUSTER = ("modules", "setup", "env", "python")
"""Of `cluster`, these keys set what a run's programs are and find."""
_COUNTED_CONTAINER = ("env", "inside", "mounts", "options", "python")
"""Of `container`, these; its image is compared by its digest, as the code is."""
_USUAL = {"device": "auto", "cwd": "run"}
"""Of `runtime`, the keys that count, with the value that most runs have."""
_BY_NAME = {*field_names(LaunchConfig), "around"} - {"params"}
"""Keys below which the order of keys does not matter: hpckit reads them by name."""


_OF_ALL_TRIALS = frozenset({"samples", "max_concurrent", "max_gpus"})
"""Of `sweep`, these keys say how many trials there are, and how many at a time."""


def compute_run_signature(config: Mapping[str, Any]) -> str:
    """Return the signature of a resolved configuration: 16 hex digits.

    The order of keys counts below the user's own keys, as their code may go through them: layers in
    another order are another model. It does not at the root, nor in the `params` of a command.
    """
    counted = {key: value for key, value in config.items() if key not in IGNORED_KEYS}
    if has_data_settings(config):
        stage = config["data"]["stage"] or {}
        counted["data"] = [[name, _describe_item(stage[name])] for name in sorted(stage)]
    resources = config.get("resources") or {}
    checkpoint = config.get("checkpoint") or {}
    if checkpoint.get("weights") is not None:
        counted["weights"] = [checkpoint["weights"], checkpoint.get("weights_strict")]
    if isinstance(counted.get("parallel"), Mapping):
        # It says what becomes of a run that loses nodes, as `recovery` does.
        counted["parallel"] = {k: v for k, v in config["parallel"].items() if k != "fallback"}
    gpus = {"gpus_per_node": requested_gpus_per_node(from_plain(Resources, resources))}
    counted["resources"] = gpus | {key: resources.get(key) for key in COUNTED_RESOURCES}
    cluster, runtime = config.get("cluster") or {}, config.get("runtime") or {}
    around = {key: cluster[key] for key in COUNTED_CLUSTER if cluster.get(key)}
    container = config.get("container") or {}
    if container.get("runtime", "none") != "none":
        around |= {f"container.{key}": container[key] for key in _COUNTED_CONTAINER if container.get(key)}
    around |= {key: runtime[key] for key in _USUAL if runtime.get(key, _USUAL[key]) != _USUAL[key]}
    if around:
        counted["around"] = around
    if config.get("command") is not None and config.get("params"):
        counted["params"] = dict(sorted(config["params"].items()))
    texts = (
        f"{_to_canonical_json(key)}:{_to_canonical_json(counted[key], by_name=key in _BY_NAME)}"
        for key in sorted(counted)
    )
    text = f"{{{','.join(texts)}}}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:LENGTH]


def _describe_item(item: Any) -> Any:
    """Return what a program sees: the source, and whether an archive stays a file."""
    source, how = (item.get("source"), item.get("how")) if isinstance(item, Mapping) else (item, None)
    stays = how in {"copy", "link"} and str(source).endswith((*TAR_SUFFIXES, *SQUASHFS_SUFFIXES))
    return [source, "file"] if stays else source


def _to_canonical_json(value: Any, *, by_name: bool = False) -> str:
    return json.dumps(value, sort_keys=by_name, ensure_ascii=False, separators=(",", ":"))


def compute_frozen_signature(config: Mapping[str, Any], search: Search | None, number: int) -> str:
    """Return the signature that a run is frozen with: that of its configuration.

    If a `search` gives it values when it begins, it is that of what it searches, and of the run's
    number in it.
    """
    if search is None:
        return compute_run_signature(config)
    sweep = {key: value for key, value in config["sweep"].items() if key not in _OF_ALL_TRIALS}
    return compute_run_signature({**config, "searched": [number, to_plain(search), sweep]})
