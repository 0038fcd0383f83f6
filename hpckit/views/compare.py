"""Compares two runs or two launches, from their frozen files and records.

It never reads outside the snapshots, whatever paths their lists of files contain.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.launch import LaunchConfig
from hpckit.model.run import RunView
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.layout import LaunchPaths
from hpckit.record.lookup import Selection
from hpckit.record.remove import is_reached_without_links
from hpckit.record.snapshot.changes import read_frozen_checksums
from hpckit.record.snapshot.environment import (
    EnvironmentDifference,
    list_environment_differences,
    list_text_differences,
)
from hpckit.record.snapshot.identity import read_frozen_identity
from hpckit.record.snapshot.outside import parse_outside_code_path, read_outside_code_checksums
from hpckit.record.store import open_regular_file, read_json_object
from hpckit.report.comparison import CodeDifference, ResultPair, RunComparison, find_key_differences
from hpckit.run_features import describe_inputs
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import build_launch_head, build_launch_views, print_view_warnings

_RESOURCES = "resources."
_MOST_BYTES = 2_000_000


_Side = tuple[Launch, Sequence[RunView], str]
"""A launch, its selected runs, and what is meant, by name."""


def compare_selections(
    old: Selection, new: Selection, context: Context, freshness: Freshness, *, code: bool
) -> RunComparison:
    """Return the differences between two runs or two launches; with `code` also the code's diff.

    Runs of launches are paired if they have the same overrides; if equally many are left on both
    sides, also by their order. Raises UsageError if one run would be compared with several.
    """
    (left, old_runs, old_name), (right, new_runs, new_name) = _load_both_sides(old, new, context, freshness)
    pairs, alone = _pair_runs(old_runs, new_runs)
    keys, inputs = [], set[EnvironmentDifference]()
    for one, other in pairs:
        before = load_run_settings(left, one.record.index)
        after = load_run_settings(right, other.record.index)
        keys.append((before[1], after[1]))
        inputs.update(
            list_text_differences(
                _describe_inputs(left, one, *before), _describe_inputs(right, other, *after)
            )
        )
    differing = find_key_differences(keys)
    return RunComparison(
        old=old_name,
        new=new_name,
        config=tuple(key for key in differing if not key.key.startswith(_RESOURCES)),
        resources=tuple(key for key in differing if key.key.startswith(_RESOURCES)),
        code=_compare_code(left, right, text=code),
        environment=(
            *sorted(inputs, key=str),
            *list_environment_differences(
                read_json_object(left.paths.environment), read_json_object(right.paths.environment)
            ),
        ),
        results=tuple(_compare_results(one, other) for one, other in pairs),
        alone=tuple(view.record.id for view in alone),
        foreign=(build_launch_head(left).foreign, build_launch_head(right).foreign),
    )


def _describe_inputs(
    launch: Launch, view: RunView, settings: LaunchConfig, config: Mapping[str, Any]
) -> dict[str, str]:
    """Return the image and the staged data of a run, by name, as they were at launch."""
    read = describe_inputs(settings, config, lambda name: (launch.folder / name).read_text())
    container = view.record.container
    image = {} if container is None else {f"image {container.image}": container.digest}
    return image | {f"data {name}": told for name, told in read.items()}


def _load_both_sides(
    old: Selection, new: Selection, context: Context, freshness: Freshness
) -> tuple[_Side, _Side]:
    chosen = (old, new)
    questions = [(selection.launch, selection.indices) for selection in chosen]
    views = build_launch_views(questions, context, freshness=freshness)
    print_view_warnings(views, context)
    left, right = (
        (view.launch, view.runs, view.launch.id if one.index is None else view.launch.runs[one.index].id)
        for one, view in zip(chosen, views, strict=True)
    )
    for (_, one_side, name), (launch, runs, other) in ((left, right), (right, left)):
        if len(one_side) == 1 and len(runs) > 1:
            raise UsageError(
                f"{name} is one run, and {other} has {len(runs)}",
                hint=f"name one of them, such as {launch.runs[0].id}, or two launches",
            )
    return left, right


def _pair_runs(
    old: Sequence[RunView], new: Sequence[RunView]
) -> tuple[list[tuple[RunView, RunView]], list[RunView]]:
    """Return the paired runs, in the order of the old ones, and those left over."""
    if len(old) == len(new) == 1:
        return [(old[0], new[0])], []
    waiting: dict[tuple[str, ...], list[RunView]] = {}
    for view in new:
        waiting.setdefault(view.record.overrides, []).append(view)
    pairs, left = [], []
    for view in old:
        found = waiting.get(view.record.overrides)
        if found:
            pairs.append((view, found.pop(0)))
        else:
            left.append(view)
    over = sorted(chain.from_iterable(waiting.values()), key=lambda one: one.record.index)
    if len(left) == len(over):
        pairs += zip(left, over, strict=True)
        return sorted(pairs, key=lambda pair: pair[0].record.index), []
    return pairs, [*left, *over]


def _compare_code(old: Launch, new: Launch, *, text: bool) -> CodeDifference:
    identities = read_frozen_identity(old.paths), read_frozen_identity(new.paths)
    other = read_outside_code_checksums(old.paths) ^ read_outside_code_checksums(new.paths)
    changes = _list_code_file_changes(old.paths, new.paths)
    lines = (line for path, _ in changes or () for line in _diff_file(old.paths, new.paths, path))
    return CodeDifference(
        same=None if None in identities else identities[0] == identities[1] and not other,
        old_commit=read_json_object(old.paths.code_record).get("commit"),
        new_commit=read_json_object(new.paths.code_record).get("commit"),
        files=changes,
        diff="\n".join(lines) if text else None,
    )


def _compare_results(old: RunView, new: RunView) -> ResultPair:
    before, after = old.record.metrics, new.record.metrics
    return ResultPair(
        old=old.record.id,
        new=new.record.id,
        states=(old.state.value, new.state.value),
        metrics={name: (before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])},
    )


def _list_code_file_changes(old: LaunchPaths, new: LaunchPaths) -> tuple[tuple[str, str], ...] | None:
    """Return the files that differ, without links, each with `added`, `removed` or `changed`.

    None if a launch has no list of its files.
    """
    before, after = _read_checksums(old), _read_checksums(new)
    if before is None or after is None:
        return None
    return tuple(
        (path, "added" if path not in before else "removed" if path not in after else "changed")
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _diff_file(old: LaunchPaths, new: LaunchPaths, path: str) -> Iterator[str]:
    try:
        before, after = _read_snapshot_file(old.code, path), _read_snapshot_file(new.code, path)
    except ValueError as error:
        yield f"# {path}: {error}"
        return
    names = (f"{old.folder.name}/{path}", f"{new.folder.name}/{path}")
    yield from difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")


def _read_snapshot_file(code: Path, path: str) -> str:
    """Return a file of a snapshot, empty if it has none; raises ValueError if it is not read."""
    if not code.is_dir():
        raise ValueError("the snapshot is gone (`hpckit clean` removes it)")
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError("it is not below the snapshot")
    if not (code / path).exists():
        return ""
    if not is_reached_without_links(code / path, code):
        raise ValueError("it is behind a link")
    try:
        with open_regular_file(code / path) as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no text") from error
    if len(data) > _MOST_BYTES:
        raise ValueError("it is too large to compare")
    return text


def _read_checksums(paths: LaunchPaths) -> Mapping[str, str] | None:
    try:
        outside = {parse_outside_code_path(line): line for line in read_outside_code_checksums(paths)}
        return dict(read_frozen_checksums(paths)) | outside if paths.code_sums.exists() else None
    except OSError:
        return None
