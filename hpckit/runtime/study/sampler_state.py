"""Continues the random numbers of a study's sampler from one process to the next.

Keeps the state of the sampler's generators as JSON, for the trial after the one at which it was
stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.samplers import BaseSampler, TPESampler

from hpckit.record.store import read_json, write_json

VERSION = 1
_FAR_APART = 1_000_003


def restored_sampler(path: Path, seed: int, number: int, *, fresh: bool) -> BaseSampler:
    """Return a sampler for trial `number`, with its generators where trial `number - 1` left them.

    If that is unknown (a process was killed while it asked), or the trial is not `fresh`, they
    start again from the seed and the number, so that no trial repeats another's.
    """
    states = _states(path, number) if fresh and number else None
    if states is None and not (fresh and number == 0):
        seed = (seed + _FAR_APART * (number + 1)) % 2**32
    sampler = TPESampler(seed=seed, constant_liar=True)
    for name, state in (states or {}).items():
        kind, keys, *rest = state
        _generators(sampler)[name].set_state((kind, keys, *rest))
    return sampler


def store_state(path: Path, sampler: BaseSampler, number: int) -> None:
    """Store the state of the generators after trial `number`."""
    states = {}
    for name, generator in _generators(sampler).items():
        kind, keys, *rest = generator.get_state()
        states[name] = [kind, keys.tolist(), *rest]
    write_json(path, {"v": VERSION, "after": number, "states": states})


def is_stored(path: Path, number: int) -> bool:
    """Return whether the state of the generators after trial `number` is stored."""
    return _states(path, number + 1) is not None


def skip_one(path: Path, number: int) -> None:
    """Note that trial `number` needed no random numbers."""
    states = _states(path, number)
    if states is not None:
        write_json(path, {"v": VERSION, "after": number, "states": states})


def _states(path: Path, number: int) -> dict[str, Any] | None:
    """Return what is stored for trial `number`; None if nothing is."""
    try:
        kept = read_json(path)
        return dict(kept["states"]) if kept["after"] == number - 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _generators(sampler: Any) -> dict[str, Any]:
    """Return the sampler's generators (optuna 5: it has one, and one for its first trials)."""
    return {"own": sampler._rng.rng, "first": sampler._random_sampler._rng.rng}  # noqa: SLF001  # Optuna has no public way to keep them
