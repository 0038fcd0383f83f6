"""The other layout in which runs continue: what was asked for, checked, and recorded.

What was frozen stays as it is; an event says from when on the section `parallel` is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.events import LayoutChanged
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.settings import Parallel
from hpckit.model.parallel.words import is_layout_word
from hpckit.model.ranges import ranges
from hpckit.planning.fallback import check_min_nodes
from hpckit.planning.layout import layout_of
from hpckit.record.launch_events import record_event
from hpckit.record.launches import Launch, load_settings

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOrder:
    """The words that ask for another layout, and the function that applies them."""

    words: tuple[str, ...]
    change: Callable[[Parallel], Parallel]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLayout:
    """The section `parallel` that a run gets, and the layout that it makes of the run's ranks.

    `settings` are the words of what else changes in it, such as `params=bf16`.
    """

    parallel: Parallel
    layout: Layout
    settings: tuple[str, ...] = ()


def check_layout_words(words: Iterable[str]) -> None:
    """Raise UsageError for an override of anything but the layout."""
    for word in words:
        if not is_layout_word(word):
            raise UsageError(
                f"resume cannot change {word.partition('=')[0]}: a run continues with what it was "
                "frozen with, and only the section parallel may be another one",
                hint="for another layout: parallel=hsdp, parallel.shard=2, …; for anything else "
                f"start another run: hpckit launch … {word}",
            )


def new_layouts(
    launch: Launch, runs: Sequence[int], order: LayoutOrder | None
) -> dict[int, NewLayout]:
    """Return the layouts of these runs, as far as they change; raises ConfigError."""
    if order is None:
        return {}
    found: dict[int, NewLayout] = {}
    for run in runs:
        settings = load_settings(launch, run)[0]
        changed = replace(settings, parallel=order.change(settings.parallel))
        try:
            check_min_nodes(changed)
        except ConfigError as error:
            where = f"{launch.runs[run].id} cannot continue with {' '.join(order.words)}: "
            raise ConfigError(where + error.message, hint=error.hint) from error
        if changed.parallel != settings.parallel:
            found[run] = NewLayout(
                parallel=changed.parallel,
                layout=layout_of(changed),
                settings=_other_settings(settings.parallel, changed.parallel),
            )
    return found


def _other_settings(before: Parallel, after: Parallel) -> tuple[str, ...]:
    """Return what differs apart from sizes, as words: `params=bf16`."""
    sizes = {axis.value for axis in MeshAxis}
    names = [one.name for one in fields(Parallel) if one.name not in sizes]
    changed = [name for name in names if getattr(after, name) != getattr(before, name)]
    return tuple(f"{name}={_text(getattr(after, name))}" for name in changed)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def record_layouts(
    launch: Launch, order: LayoutOrder | None, layouts: Mapping[int, NewLayout], context: Context
) -> None:
    """Record the layouts that runs have from their next attempt on; raises UsageError."""
    words = () if order is None else order.words
    for parallel, runs in _alike(layouts, lambda one: one.parallel).items():
        event = LayoutChanged(at=context.now(), runs=runs, words=words, parallel=parallel)
        try:
            record_event(launch.paths, event)
        except OSError as error:
            raise UsageError(
                f"the launch folder {launch.folder} cannot be written: {error.strerror or error}",
                hint="check quota and free space, and that the folder is still yours to write",
            ) from error


def layout_lines(layouts: Mapping[int, NewLayout]) -> list[str]:
    """Return a line for each layout: `0-3: replicate 2 x tensor 4, params=bf16`."""
    alike = _alike(layouts, lambda one: ", ".join([str(one.layout), *one.settings]))
    return [f"{ranges(runs)}: {layout}" for layout, runs in alike.items()]


def layout_documents(layouts: Mapping[int, NewLayout]) -> list[dict[str, object]]:
    """Return what `resume --json` says of the new layouts."""
    return [
        {"index": run, "layout": one.layout.sizes, "parallel": one.parallel}
        for run, one in layouts.items()
    ]


def _alike(
    layouts: Mapping[int, NewLayout], key: Callable[[NewLayout], K]
) -> dict[K, tuple[int, ...]]:
    found: dict[K, tuple[int, ...]] = {}
    for run, one in layouts.items():
        found[key(one)] = (*found.get(key(one), ()), run)
    return found
