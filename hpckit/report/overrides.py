"""The overrides in which runs of a launch differ, short enough for one cell of a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hpckit.report.escape import shortened
from hpckit.report.selection import assigned

CELL_WIDTH = 60
_KEY_WIDTH = 10
_LEAST_VALUE = 8


def common_words(sweep: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return the overrides that all these runs have."""
    common: set[str] | None = None
    for words in sweep:
        common = set(words) if common is None else common.intersection(words)
        if not common:
            break
    return frozenset(common or ())


def override_cells(runs: Iterable[Iterable[str]], common: frozenset[str]) -> list[str]:
    """Return a cell for each run: its overrides without those in `common`, keys shortened."""
    given = [assigned(word for word in words if word not in common) for words in runs]
    names = _short_names(dict.fromkeys(key for one in given for key in one))
    return [_cell({names[key]: value for key, value in one.items()}) for one in given]


def _short_names(keys: Iterable[str]) -> Mapping[str, str]:
    """Return each key by its last part, unless another key ends with the same part."""
    known = list(keys)
    lasts = Counter(map(_last, known))
    return {key: _last(key) if lasts[_last(key)] == 1 else key for key in known}


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _cell(given: Mapping[str, str]) -> str:
    """Return `lr=0.1 seed=2`; if too long, first with shorter keys, then with shorter values."""
    words = [f"{key}={value}" for key, value in given.items()]
    if len(" ".join(words)) <= CELL_WIDTH:
        return " ".join(words)
    keys = [shortened(key, _KEY_WIDTH) for key in given]
    room = _room(CELL_WIDTH, keys)
    words = [
        f"{key}={shortened(value, room)}" for key, value in zip(keys, given.values(), strict=True)
    ]
    return shortened(" ".join(words), CELL_WIDTH)


def _room(width: int, keys: Sequence[str]) -> int:
    """Return how many characters each value may have next to these keys."""
    taken = sum(len(key) + 2 for key in keys) - 1
    return max((width - taken) // len(keys), _LEAST_VALUE)
