"""Resolves a composed configuration to plain values: complete, known keys, JSON-able.

The result is what is frozen and what a run reads, independent of Hydra.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import InterpolationValidationError, OmegaConfBaseException

from hpckit.config.names import (
    format_did_you_mean,
    list_dotted_keys,
    list_sibling_keys,
    suggest_nearest_names,
)
from hpckit.config.schema import describe_allowed_values, list_typed_sections
from hpckit.errors import ConfigError, iterate_error_causes
from hpckit.model.launch import MISSING, ClusterKind
from hpckit.model.plain import iterate_leaf_values
from hpckit.patterns import lazy_pattern
from hpckit.values import field_names

_NOT_FOUND = lazy_pattern(r"Interpolation key '([^']+)' not found")
_RAISED = lazy_pattern(r"\w+ raised while resolving interpolation: ")
_NO_RESOLVER = "Unsupported interpolation type"


Lost = dict[str, object]
"""What JSON only holds the text of, by its place: enum members, paths, and, under the place of a
mapping, the list of such keys."""


def resolve_config(config: DictConfig, environ: Mapping[str, str], lost: Lost) -> dict[str, Any]:
    """Return the configuration as plain values, with `cluster.kind` decided; adds to `lost`.

    Raises ConfigError for mandatory values that are missing, unknown keys in hpckit's own sections,
    interpolations that cannot be resolved, and values that JSON cannot hold.
    """
    _refuse_unknown_keys(config)
    words = collect_stage_overrides(config)
    try:
        values = OmegaConf.to_container(
            remove_stage_overrides(config, words), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        raise _missing_values_error(config) or _unresolved_value_error(error, config) from error
    resolved = cast("dict[str, Any]", config_value_to_json(values, "", lost))
    for name, given in words.items():
        resolved["stages"][name]["overrides"] = given
    resolved["cluster"]["kind"] = _decide_cluster_kind(resolved["cluster"], environ).value
    return resolved


def collect_stage_overrides(config: DictConfig) -> dict[str, list[str]]:
    """Return the overrides of each stage as written, with their interpolations.

    They are words of a command line: `lr=${base_lr}` refers to the configuration of each run of
    the stage, not to the one that all stages begin with.
    """
    stages = OmegaConf.to_container(config.stages) if config.get("stages") else None
    found: dict[str, list[str]] = {}
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        words = stage.get("overrides") if isinstance(stage, dict) else None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            found[str(name)] = words
    return found


def remove_stage_overrides(config: DictConfig, words: Mapping[str, list[str]]) -> DictConfig:
    """Return a copy in which these stages have no overrides, so that it can be resolved."""
    if not words:
        return config
    bare = copy.deepcopy(config)
    with flag_override(bare, ["readonly", "struct"], False):  # noqa: FBT003  # its own signature
        for name in words:
            bare.stages[name].overrides = []
    return bare


def _decide_cluster_kind(cluster: Mapping[str, Any], environ: Mapping[str, str]) -> ClusterKind:
    kind = ClusterKind(cluster["kind"])
    if kind is not ClusterKind.auto:
        return kind
    folders = cluster["bin_dir"] or environ.get("PATH", "")
    return ClusterKind.slurm if shutil.which("sbatch", path=folders) else ClusterKind.local


def _missing_values_error(config: DictConfig) -> ConfigError | None:
    unresolved = cast("dict[str, Any]", OmegaConf.to_container(config))
    keys = [key for key, value in iterate_leaf_values(unresolved) if value == MISSING]
    if not keys:
        return None
    are = "is mandatory and has" if len(keys) == 1 else "are mandatory and have"
    example = " ".join(f"{key}=..." for key in keys)
    hint = f"Give it: {example}"
    if keys == ["command"]:
        hint = "Give it after --: hpckit launch -- python train.py --lr 0.1"
    return ConfigError(f"{', '.join(keys)} {are} no value.", hint=hint)


def _refuse_unknown_keys(config: DictConfig) -> None:
    """Raise ConfigError for `+` keys that must be typos: in our sections, or group names."""
    slashed = [str(key) for key in config if "/" in str(key)]
    if slashed:
        raise ConfigError(
            f"There is no group {slashed[0]}, and a key of your own cannot have a slash.",
            hint="`--info groups` lists the groups.",
        )
    for section, kind in list_typed_sections().items():
        known = field_names(kind)
        unknown = [str(key) for key in config.get(section) or known if key not in known]
        if unknown:
            named = [f"{section}.{name}" for name in suggest_nearest_names(unknown[0], known)]
            raise ConfigError(
                f"{section}.{unknown[0]} is not a key of hpckit.{format_did_you_mean(named)}",
                hint=f"Known in {section}: {', '.join(known)}. Keys of your own go elsewhere, "
                f"for example +params.{unknown[0]}=...",
            )


def _unresolved_value_error(error: OmegaConfBaseException, config: DictConfig) -> ConfigError:
    told = next((cause for cause in iterate_error_causes(error) if isinstance(cause, ConfigError)), None)
    if told is not None:
        return ConfigError(f"{error.full_key}: {told.message}.", hint=told.hint)
    reason = _RAISED.sub("", str(error).splitlines()[0]).removesuffix(".")
    message = f"{error.full_key or 'The configuration'} cannot be resolved: {reason}."
    lost = _NOT_FOUND.search(reason)
    literal = str(error.full_key).startswith("command")
    more = " In a command, write \\${NAME} for what a shell is to read." if literal else ""
    if isinstance(error, InterpolationValidationError):
        return ConfigError(message, hint=describe_allowed_values(str(error.full_key)))
    if not lost:
        return ConfigError(message, hint=_suggest_interpolation_fix(reason) + more)
    keys = list_dotted_keys(cast("dict[str, Any]", OmegaConf.to_container(config)))
    message += format_did_you_mean(suggest_nearest_names(lost[1], keys))
    beside = list_sibling_keys(lost[1], keys) or list_sibling_keys("", keys)
    return ConfigError(message, hint=f"Known: {', '.join(beside)}.{more}")


def _suggest_interpolation_fix(reason: str) -> str:
    if reason.startswith("environment variable"):
        return "Export it, or give a default: ${oc.env:NAME,default}."
    if _NO_RESOLVER in reason or "HydraConfig" in reason:
        return (
            "hpckit resolves ${key}, ${oc.env:...} and the other ${oc....}; not ${hydra:...}; what "
            "your code registers if `imports` names its module: imports=[myapp.config]"
        )
    return "Interpolations are ${key.path} from the root or ${.key} from the same level; see --cfg."


def config_value_to_json(value: Any, path: str, lost: Lost) -> Any:
    """Return a resolved value in a form that JSON can hold; it is located below `path` (`a.b.`).

    Raises ConfigError if its type is not supported.
    """
    if isinstance(value, dict):
        texts = {key: key.name if isinstance(key, Enum) else str(key) for key in value}
        if others := [key for key, text in texts.items() if key != text]:
            lost[path.removesuffix(".")] = others
        return {text: config_value_to_json(value[key], f"{path}{text}.", lost) for key, text in texts.items()}
    if isinstance(value, list):
        return [config_value_to_json(item, f"{path}{index}.", lost) for index, item in enumerate(value)]
    if isinstance(value, Enum | PurePath):
        typed: Any = value
        value = value.name if isinstance(value, Enum) else str(value)
        if typed != value:  # Opt(str, Enum) with adam = "adam" loses nothing
            lost[path.removesuffix(".")] = typed
    try:  # bytes of the command line that are no UTF-8 are kept; half a surrogate pair has none
        f"{path}{value if isinstance(value, str) else ''}".encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{path.removesuffix('.')!a} is or has {value!a}, which is not Unicode text.",
            hint="Write the characters themselves, in UTF-8.",
        ) from error
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ConfigError(
        f"{path.removesuffix('.')} is a {type(value).__name__}, which a frozen configuration cannot hold.",
        hint="Use text, numbers, booleans, null, lists and mappings; write dates as text.",
    )
