"""Finds the names that the user may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

from hpckit.model.launch import LaunchConfig, Resources
from hpckit.values import field_names

_OF_SLURM = {
    "resources.time": "resources.timeout_min",
    "resources.time_min": "resources.timeout_min",
    "resources.walltime": "resources.timeout_min",
    "resources.ntasks_per_node": "resources.tasks_per_node",
    "resources.ntasks": "resources.tasks_per_node",
    "resources.cpus": "resources.cpus_per_task",
    "resources.memory": "resources.mem_gb",
    "resources.array": "resources.array_parallelism",
}
"""What sbatch and other tools call these keys, which are spelt quite differently."""
_SHOWN = 3
_ALIKE = 0.7
_SAME_LAST_PART = 0.95
_FIRST_WORD = 0.9
_ROOT = (*field_names(LaunchConfig), "experiment")
RESOURCES = frozenset(field_names(Resources))
_LIKE_ROOT = 0.84
"""`recovry`, `param`, `clustr` are above it, `mode` and `node` (for `code`) are not."""
_SHORT = 4
"""Names this short are similar to many unrelated words: `speed` is not a typo of `seed`."""


def suggest_nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three of `known` that `name` may stand for, the most likely first.

    Dotted names in one section are compared by their last part. Across sections, the same last part
    counts as nearly certain: `nodes` means `resources.nodes`. If the section exists, names from
    other sections are only suggested if they have the same last part.
    """
    names = [other for other in dict.fromkeys(known) if other != name]
    if _OF_SLURM.get(name) in names:
        return (_OF_SLURM[name],)
    section, _, last = name.rpartition(".")
    if section in names:
        names = [o for o in names if o in list_sibling_keys(name, names) or o.endswith(f".{last}")]
    scored = [(_score_key_similarity(name, other), other) for other in names]
    likely = sorted((pair for pair in scored if pair[0] >= _ALIKE), key=lambda pair: -pair[0])
    return tuple(other for _, other in likely[:_SHOWN])


def guess_intended_key(key: str) -> str | None:
    """Return the key that an added one was probably meant to be; None if it is not a typo."""
    root, dot, rest = key.partition(".")
    if root in _ROOT:
        return None
    if root in RESOURCES and not dot:
        return f"resources.{root}"
    near = [(_text_similarity_ratio(root, name), name) for name in _ROOT if _is_likely_root_typo(root, name)]
    return f"{max(near)[1]}{dot}{rest}" if near else None


def format_did_you_mean(candidates: Iterable[str]) -> str:
    """Return ` Did you mean a or b?`, or nothing if there is no candidate."""
    listed = list(candidates)
    return f" Did you mean {' or '.join(listed)}?" if listed else ""


def list_dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> tuple[str, ...]:
    """Return every key of a nested mapping as a dotted path, including sections."""
    keys: list[str] = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        keys.append(path)
        if isinstance(value, Mapping):
            keys.extend(list_dotted_keys(value, f"{path}."))
    return tuple(keys)


def list_sibling_keys(name: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the dotted keys in the same section as `name`."""
    section = name.rpartition(".")[0]
    return tuple(key for key in keys if key.rpartition(".")[0] == section)


def _score_key_similarity(name: str, other: str) -> float:
    section, _, last = name.rpartition(".")
    other_section, _, other_last = other.rpartition(".")
    if section == other_section:
        return _score_name_similarity(last, other_last)
    if last == other_last:
        return _SAME_LAST_PART
    return max(
        _score_name_similarity(name, other) * (section != ""), _score_name_similarity(last, other_last) - 0.05
    )


def _score_name_similarity(one: str, other: str) -> float:
    if other.startswith(f"{one}_"):
        return _FIRST_WORD  # `gpus` for `gpus_per_node`
    return _text_similarity_ratio(one, other)


def _is_likely_root_typo(root: str, name: str) -> bool:
    if len(name) <= _SHORT:
        return sorted(root) == sorted(name) or root == f"{name}s"
    return _text_similarity_ratio(root, name) >= _LIKE_ROOT


def _text_similarity_ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()
