"""The differences between two runs, or two launches, as text and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpckit.model.counted import format_count
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import attributes_to_json, has_same_repr, to_plain
from hpckit.report.rows import Foreign
from hpckit.report.text import Page, TextTable, format_foreign_owner, format_number
from hpckit.values import dataclass, field_names, replace

_SHOWN_FILES = 20
_SHOWN_PAIRS = 50
_TYPED = {*field_names(LaunchConfig)} - {"params"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDifference:
    """A key of the configuration; `only` says which side has it, null if both do.

    `runs` is the number of pairs of runs with this difference.
    """

    key: str
    old: Any
    new: Any
    only: str | None
    runs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeDifference:
    """The code of both. Commits are null outside of git; `same` is null if it cannot be determined.

    `files` are the files that differ, each with how; null if a snapshot is missing. `diff` is the
    text of the differences, null if it was not requested.
    """

    same: bool | None
    old_commit: str | None
    new_commit: str | None
    files: tuple[tuple[str, str], ...] | None
    diff: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPair:
    """Two runs side by side: their states, and the last value of each metric of either run."""

    old: str
    new: str
    states: tuple[str, str]
    metrics: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The differences between `old` and `new`. `alone` are runs that have no counterpart.

    `environment` has name, old and new value; null means not recorded. `foreign` has the owners of
    both launches, null for the caller's own.
    """

    old: str
    new: str
    config: tuple[KeyDifference, ...]
    resources: tuple[KeyDifference, ...]
    code: CodeDifference
    environment: tuple[tuple[str, str | None, str | None], ...]
    results: tuple[ResultPair, ...]
    alone: tuple[str, ...]
    foreign: tuple[Foreign | None, Foreign | None] = (None, None)


def find_key_differences(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[KeyDifference, ...]:
    """Return the keys that differ in any of these pairs of configurations, in their order.

    A mapping of the user's own whose keys are in another order is one of them.
    """
    found: dict[str, KeyDifference] = {}
    counts: dict[str, int] = {}
    for old, new in pairs:
        turned = dict(_find_reordered_mappings(old, new))
        before = dict(_list_config_leaves(old)) | {key: one for key, (one, _) in turned.items()}
        after = dict(_list_config_leaves(new)) | {key: other for key, (_, other) in turned.items()}
        for key in dict.fromkeys([*before, *after]):
            same = key in before and key in after and has_same_repr(before[key], after[key])
            if same or _is_empty_section(key, before, after) or _is_empty_section(key, after, before):
                continue
            only = None if key in before and key in after else "old" if key in before else "new"
            one = KeyDifference(key=key, old=before.get(key), new=after.get(key), only=only)
            name = json.dumps(to_plain(one), default=str)
            found[name], counts[name] = one, counts.get(name, 0) + 1
    return tuple(replace(one, runs=counts[name]) for name, one in found.items())


def _is_empty_section(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a key only stands for a section that is empty in `one` and has keys in `other`."""
    return one.get(key) == {} and any(name.startswith(f"{key}.") for name in other)


def _list_config_leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _list_config_leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _find_reordered_mappings(
    old: Mapping[str, Any], new: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the mappings of the user's own whose common keys are in another order on each side."""
    for name, one in old.items():
        other = new.get(name)
        typed = not above and name in _TYPED
        if typed or not isinstance(one, Mapping) or not isinstance(other, Mapping):
            continue
        if [key for key in one if key in other] != [key for key in other if key in one]:
            yield f"{above}{name}", (one, other)
        yield from _find_reordered_mappings(one, other, f"{above}{name}.")


def render_comparison_page(found: RunComparison) -> Page:
    """Return the page of `diff`."""
    page: list[TextTable | str] = [f"old  {found.old}\nnew  {found.new}"]
    owners = zip(("old", "new"), found.foreign, strict=True)
    page += [f"{side} is {format_foreign_owner(one)}" for side, one in owners if one is not None]
    sections = {
        "configuration": [_format_key_difference(key, len(found.results)) for key in found.config],
        "resources": [_format_key_difference(key, len(found.results)) for key in found.resources],
        "code": _format_code_difference(found.code),
        "environment": [
            f"{name}: {_format_value_or_none(old)} -> {_format_value_or_none(new)}"
            for name, old, new in found.environment
        ],
    }
    for title, lines in sections.items():
        inside = "".join(f"\n  {line}" for line in lines)
        page.append(f"\n{title}:{inside or ' the same'}")
    page += ["\nresults:", _build_results_table(found.results[:_SHOWN_PAIRS])] if found.results else []
    if len(found.results) > _SHOWN_PAIRS:
        page.append(f"… and {len(found.results) - _SHOWN_PAIRS} more pairs; --json has all")
    if found.alone:
        page.append(f"without a counterpart: {', '.join(found.alone)}")
    if found.code.diff:
        page.append("\n" + found.code.diff)
    return page


def _format_key_difference(one: KeyDifference, pairs: int) -> str:
    old, new = (json.dumps(to_plain(value), ensure_ascii=False) for value in (one.old, one.new))
    old = "(absent)" if one.only == "new" else old
    new = "(absent)" if one.only == "old" else new
    some = f"  ({one.runs} of {pairs} runs)" if one.runs < pairs else ""
    return f"{one.key}: {old} -> {new}{some}"


def _format_value_or_none(text: str | None) -> str:
    return "(none)" if text is None else text


def _format_code_difference(code: CodeDifference) -> list[str]:
    if code.same and not code.files:
        return []
    lines = []
    if code.old_commit != code.new_commit:
        lines.append(
            f"commit: {_format_value_or_none(code.old_commit)} -> {_format_value_or_none(code.new_commit)}"
        )
    if code.files is None:
        unknown = "it is not known whether it is the same" if code.same is None else "it differs"
        lines.append(f"{unknown}; files can be compared only with a snapshot of both")
        return lines
    lines += [f"{change}: {path}" for path, change in code.files[:_SHOWN_FILES]]
    if len(code.files) > _SHOWN_FILES:
        lines.append(f"… and {format_count(len(code.files) - _SHOWN_FILES, 'more file')}")
    return lines or ["the same files, from another folder"]


def _build_results_table(pairs: Sequence[ResultPair]) -> TextTable:
    rows = [
        (f"{pair.old.rpartition('.')[2]} / {pair.new.rpartition('.')[2]}", name, *map(format_number, values))
        for pair in pairs
        for name, values in {"state": pair.states, **pair.metrics}.items()
    ]
    first = 1 if len(pairs) == 1 else 0
    header = ("runs", "what", "old", "new")
    return TextTable(header=header[first:], rows=tuple(row[first:] for row in rows))


def comparison_to_json(found: RunComparison) -> dict[str, Any]:
    """Return the document that `diff --json` prints."""
    code, files = found.code, found.code.files
    return {
        **attributes_to_json(found, "old new config resources"),
        "code": {
            "same": code.same,
            "commit": attributes_to_json(code, "old=old_commit new=new_commit"),
            "files": files and [{"path": path, "change": change} for path, change in files],
            "diff": code.diff,
        },
        "environment": [{"name": name, **_old_and_new_to_json(*both)} for name, *both in found.environment],
        "results": [
            {
                **attributes_to_json(result, "old new"),
                "state": _old_and_new_to_json(*result.states),
                "metrics": {name: _old_and_new_to_json(*both) for name, both in result.metrics.items()},
            }
            for result in found.results
        ],
        "alone": list(found.alone),
        "foreign": _old_and_new_to_json(*found.foreign),
    }


def _old_and_new_to_json(old: Any, new: Any) -> dict[str, Any]:
    return {"old": to_plain(old), "new": to_plain(new)}
