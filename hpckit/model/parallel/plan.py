"""`Plan`: which modules of a model are cut how, by their names. Pure, so it can be printed.

A pattern is a dotted name in which `*` stands for any text without a dot: `blocks.*.query`. Names
are those of `Module.named_modules()`; those of parameters have the parameter's name behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from hpckit.errors import ConfigError
from hpckit.values import dataclass, field, field_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a model may be cut: what repeats, what stands at its ends, and how its matrices split.

    Only `units` is needed for sharding (`fsdp`, `hsdp`). `first`, `last` and `units` are for
    `pipeline`; `columns`, `rows`, `sequence` and `heads` are for `tensor`.

    Example: `Plan(units="blocks.*", first=("embed",), last=("norm", "head"))`.

    `units`: the modules that repeat, such as transformer blocks, in the order they run. Each is sharded,
    recomputed and compiled by itself, and a pipeline stage is a number of them. `first`, `last`: the modules
    that run before all units, and after all units. `tied`: pairs of parameters that are one and the same.
    They must be the same in the model, too. `columns`: linear layers that are cut by their outputs: queries,
    keys, values, the first layer of a feed-forward pair. Outside of units, the output is put together again.
    `rows`: linear layers that are cut by their inputs: attention's output, the second layer of a feed-forward
    pair. An embedding is cut by its entries. `sequence`: modules that treat each position by itself, such as
    norms and dropout. `heads`: for units, how many attention heads and key-value heads they have; `tensor`
    has to divide both.
    """

    units: str | Sequence[str] = ()
    first: str | Sequence[str] = ()
    last: str | Sequence[str] = ()
    tied: Sequence[tuple[str, str]] = ()
    columns: str | Sequence[str] = ()
    rows: str | Sequence[str] = ()
    sequence: str | Sequence[str] = ()
    heads: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an invalid plan; raises ConfigError."""
        for name in field_names(self):
            if name not in {"tied", "heads"}:
                object.__setattr__(self, name, _check_module_patterns(name, getattr(self, name)))
        object.__setattr__(self, "tied", tuple(_check_tied_pair(pair) for pair in self.tied))
        for pattern, counts in self.heads.items():
            _check_head_counts(pattern, counts)

    def match_names(self, patterns: Iterable[str], names: Iterable[str]) -> list[str]:
        """Return the names that match one of the patterns, in the order of the names."""
        wanted = list(patterns)
        return [name for name in names if any(name_matches_pattern(name, pattern) for pattern in wanted)]

    def group_tied_names(self) -> list[tuple[str, ...]]:
        """Return the names of each parameter that has several, in the order of the pairs.

        Example: the pairs `("a", "b")` and `("a", "c")` are one parameter, `("a", "b", "c")`.
        """
        found: list[tuple[str, ...]] = []
        for pair in self.tied:
            met = [group for group in found if not {*pair}.isdisjoint(group)]
            joined = dict.fromkeys(name for group in (*met, pair) for name in group)
            found = [group for group in found if group not in met] + [tuple(joined)]
        return found

    def find_unmatched_patterns(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return, by field, the patterns that no module of these names matches."""
        known = list(names)
        found: dict[str, tuple[str, ...]] = {}
        for name in field_names(self):
            if name != "tied":
                lost = tuple(p for p in getattr(self, name) if not self.match_names((p,), known))
                found |= {name: lost} if lost else {}
        return found


def name_matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, part by part.

    Example: `blocks.3.query` matches `blocks.*.query`, but `blocks.3.attention.query` does not.
    """
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _check_module_patterns(name: str, value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not all(isinstance(one, str) and one for one in given):
        raise ConfigError(
            f"Plan({name}={value!r}) is not a name or pattern of modules",
            hint=f'a pattern looks like "blocks.*"; several are a tuple: {name}=("a", "b")',
        )
    return tuple(given)


def _check_tied_pair(pair: object) -> tuple[str, str]:
    given = tuple(pair) if isinstance(pair, Sequence) and not isinstance(pair, str) else ()
    match given:
        case (str() as one, str() as other) if one != other:
            return one, other
        case _:
            raise ConfigError(
                f"Plan(tied=…) has {pair!r}, which is not a pair of parameters",
                hint='name both: tied=(("embed.weight", "head.weight"),)',
            )


def _check_head_counts(pattern: str, counts: object) -> None:
    match counts:
        case (int() as heads, int() as kv_heads) if 0 < kv_heads <= heads and not heads % kv_heads:
            return
        case _:
            raise ConfigError(
                f"Plan(heads={{{pattern!r}: {counts!r}}}) is not (heads, key-value heads)",
                hint="both are whole numbers, and the first is a multiple of the second",
            )
