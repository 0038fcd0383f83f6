"""Faults as text: what may be injected inside a rank or from outside, and random schedules.

A fault is a kind, for signals optionally a target, and values: `kill rank=1 step=17`, `stop agent
node=n2`, `requeue`. Pure: the same words give the same faults, the same seed the same schedule.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hpckit.errors import ConfigError, UsageError
from hpckit.model.fault import ON_NODES, SIGNALS, Fault, FaultKind, FaultTarget
from hpckit.model.moment import UNIT_SECONDS
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, replace

_PLANNED = ("rank", "step", "times")
_WITHIN: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.kill: _PLANNED,
    FaultKind.stop: _PLANNED,
    FaultKind.hang: (*_PLANNED, "seconds"),
    FaultKind.hang_gil: (*_PLANNED, "seconds"),
    FaultKind.segfault: _PLANNED,
    FaultKind.abort: _PLANNED,
    FaultKind.raise_: _PLANNED,
    FaultKind.exit: (*_PLANNED, "code"),
    FaultKind.oom: (*_PLANNED, "limit_mb"),
    FaultKind.nan: _PLANNED,
    FaultKind.fill_disk: (*_PLANNED, "folder", "limit_mb", "seconds"),
    FaultKind.leak: (*_PLANNED, "mb_per_step"),
}
_OUTSIDE: Mapping[FaultKind, tuple[str, ...]] = {
    **dict.fromkeys(sorted(SIGNALS), ("rank", "node")),
    FaultKind.requeue: (),
    FaultKind.scancel: (),
    FaultKind.preempt: ("partition", "seconds"),
    FaultKind.flip: ("fraction",),
    FaultKind.truncate: ("fraction",),
    FaultKind.tear: (),
    **dict.fromkeys(sorted(ON_NODES), ("node",)),
    FaultKind.stop_controller: (),
    FaultKind.start_controller: (),
}
_NEEDED: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.fill_disk: ("folder",),
    FaultKind.preempt: ("partition",),
}
_DURATION = lazy_pattern(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>|s|m|min|h)\Z")
_UNITS = UNIT_SECONDS | {"": 1, "m": 60}


def parse_planned_faults(words: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults of the config key `chaos`.

    Each has a `step`, and a `rank` (0 by default). Raises ConfigError with the bad word.
    """
    faults = (_parse_fault(str(text), _WITHIN_RANKS) for text in words)
    return tuple(replace(fault, rank=fault.rank or 0) for fault in faults)


def group_words_by_fault(words: Iterable[str]) -> tuple[str, ...]:
    """Return one text per fault of a command line: every kind begins a new one.

    Words before the first kind are returned as the first text.
    """
    texts: list[str] = []
    for word in (word for text in words for word in text.replace(",", " ").split()):
        if word in _OUTSIDE or word in _WITHIN or not texts:
            texts.append(word)
        else:
            texts[-1] += f" {word}"
    return tuple(texts)


def parse_externally_injected_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults to inject from outside. Raises UsageError with the bad word."""
    return tuple(_parse_fault(text, _FROM_OUTSIDE) for text in texts)


def generate_random_fault_schedule(
    seed: int, mtbf: timedelta, faults: Sequence[Fault], ranks: int, nodes: Sequence[str] = ()
) -> Iterator[tuple[timedelta, Fault]]:
    """Yield faults indefinitely, each with the time after the start at which it is due.

    Times between them are exponential, and all faults equally likely.

    A rank, node or fraction that a fault leaves open is drawn, too. Only `Random.random()` is used
    because its numbers are the same in every Python.
    """
    draw = random.Random(seed).random  # noqa: S311  # a schedule is no secret
    after = timedelta()
    while True:
        after -= mtbf * math.log(1.0 - draw())
        chosen, where = faults[int(draw() * len(faults))], draw()
        yield after, _fill_in_missing_fault_target(chosen, where, ranks, nodes)


def parse_delay(text: str) -> timedelta:
    """Return the duration of `90`, `90s`, `2m` or `1h`. Raises UsageError for anything else."""
    match = _DURATION.match(text.strip())
    seconds = float(match["number"]) * _UNITS[match["unit"]] if match else 0.0
    if seconds <= 0:
        raise UsageError(
            f"{text!r} is not a duration", hint="write a number above 0 and s, m or h: 90s, 2m, 1h"
        )
    return timedelta(seconds=seconds)


def _fill_in_missing_fault_target(fault: Fault, where: float, ranks: int, nodes: Sequence[str]) -> Fault:
    signal = fault.kind in SIGNALS
    if signal and fault.target is FaultTarget.rank and fault.rank is None:
        return replace(fault, rank=int(where * ranks))
    wants_node = fault.kind in ON_NODES or (signal and fault.target is FaultTarget.agent)
    if wants_node and fault.node is None and nodes:
        return replace(fault, node=nodes[int(where * len(nodes))])
    if fault.kind in {FaultKind.flip, FaultKind.truncate} and fault.fraction is None:
        return replace(fault, fraction=round(where, 6))
    return fault


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grammar:
    """The kinds that are possible in one place, with their values; `hint` says where others are."""

    kinds: Mapping[FaultKind, tuple[str, ...]]
    needed: tuple[str, ...]
    targets: bool
    error: type[UsageError]
    hint: str


_WITHIN_RANKS = _Grammar(
    kinds=_WITHIN,
    needed=("step",),
    targets=False,
    error=ConfigError,
    hint="for example chaos=['kill rank=1 step=17']; `hpckit chaos` injects other faults from outside",
)
_FROM_OUTSIDE = _Grammar(
    kinds=_OUTSIDE,
    needed=(),
    targets=True,
    error=UsageError,
    hint="others are planned, inside a rank: chaos=['hang rank=1 step=17']",
)


def _parse_fault(text: str, grammar: _Grammar) -> Fault:
    kind_word, *rest = text.split() or [""]
    kind = next((kind for kind in grammar.kinds if kind.value == kind_word), None)
    if kind is None:
        raise _build_unknown_fault_error(text, kind_word, grammar)
    fault = Fault(kind=kind)
    for word in rest:
        fault = _set_fault_field_from_word(fault, word, text, grammar)
    for name in (*grammar.needed, *_NEEDED.get(kind, ())):
        if getattr(fault, name) is None:
            raise grammar.error(f"chaos: {text!r} lacks {name}=…", hint=f"{name} is {_READERS[name].meaning}")
    return fault


def _set_fault_field_from_word(fault: Fault, word: str, text: str, grammar: _Grammar) -> Fault:
    name, equals, value = word.partition("=")
    if not equals and grammar.targets and fault.kind in SIGNALS and name in set(FaultTarget):
        return replace(fault, target=FaultTarget(name))
    allowed = grammar.kinds[fault.kind]
    if not equals or name not in allowed:
        targets = f"; or {', '.join(FaultTarget)}" if grammar.targets and fault.kind in SIGNALS else ""
        known = ", ".join(f"{key}=…" for key in allowed) or "nothing"
        raise grammar.error(
            f"chaos: {text!r}: {fault.kind} takes no {word!r}", hint=f"it takes {known}{targets}"
        )
    try:
        return replace(fault, **{name: _READERS[name].read(value)})
    except ValueError:
        raise grammar.error(
            f"chaos: {text!r}: {name} is {value!r}", hint=f"{name} is {_READERS[name].meaning}"
        ) from None


def _build_unknown_fault_error(text: str, word: str, grammar: _Grammar) -> UsageError:
    near = difflib.get_close_matches(word, [kind.value for kind in grammar.kinds], n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return grammar.error(
        f"chaos: {text!r} begins with {word!r}, which is not a fault that can be injected here; "
        f"possible are {', '.join(kind.value for kind in grammar.kinds)}",
        hint=guess + grammar.hint,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """How a value is read (ValueError if it cannot be), and what it means."""

    read: Callable[[str], Any]
    meaning: str


def _parse_whole_number(text: str, *, least: int = 0, most: int = 2**31) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


def _parse_repeat_count(text: str) -> int | None:
    return None if text == "always" else _parse_whole_number(text, least=1)


def _parse_real_number(text: str, *, below: float = math.inf) -> float:
    number = float(text)
    if not 0 <= number < below:
        raise ValueError(text)
    return number


def _parse_nonempty_text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


_READERS: Mapping[str, _Reader] = {
    "rank": _Reader(read=_parse_whole_number, meaning="the number of a rank, from 0"),
    "step": _Reader(read=_parse_whole_number, meaning="the step before which it happens, from 0"),
    "times": _Reader(read=_parse_repeat_count, meaning="how often in the whole run: 1, 2, …, or always"),
    "code": _Reader(read=lambda text: _parse_whole_number(text, most=255), meaning="an exit code, 0 to 255"),
    "seconds": _Reader(
        read=_parse_real_number, meaning="a duration in seconds (default: until it is undone)"
    ),
    "limit_mb": _Reader(read=lambda text: _parse_whole_number(text, least=1), meaning="at most this many MB"),
    "mb_per_step": _Reader(read=lambda text: _parse_whole_number(text, least=1), meaning="MB lost each step"),
    "folder": _Reader(read=_parse_nonempty_text, meaning="a folder on the file system to fill"),
    "node": _Reader(read=_parse_nonempty_text, meaning="the name of a node of the run"),
    "partition": _Reader(
        read=_parse_nonempty_text, meaning="a partition whose jobs take nodes from the run's"
    ),
    "fraction": _Reader(
        read=lambda text: _parse_real_number(text, below=1.0),
        meaning="a place in the checkpoint, 0 to below 1",
    ),
}
