"""Whether a plan fits a model and its layout, before the model is cut. Errors name the module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from torch import nn

from hpckit.errors import ConfigError
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.plan import Plan, is_match

_SHOWN, _SHOWN_PATTERNS = 5, 20


def check_plan(model: nn.Module, plan: Plan, layout: Layout) -> tuple[str, ...]:
    """Return the names of the plan's units in this model, in order; raises ConfigError."""
    for problem in plan_problems(model, plan, layout):
        raise problem
    return units_of(model, plan)


def units_of(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Return the names of the modules that a plan says repeat, in order."""
    return tuple(plan.matching(plan.units, _names(model)))


def plan_problems(model: nn.Module, plan: Plan, layout: Layout) -> Iterator[ConfigError]:
    """Yield all that does not fit together; the model may be on any device, also on meta."""
    names = _names(model)
    unmatched = plan.unmatched(names)
    for field, patterns in unmatched.items():
        yield ConfigError(
            f"Plan({field}=…): {', '.join(patterns)} matches no module of the model",
            hint=_near_words(patterns, names),
        )
    units = units_of(model, plan)
    if not units and not unmatched and layout.replica_size > 1:
        yield ConfigError(
            f"the plan names no units, and the model is to be laid out as {layout}",
            hint='name what repeats, for example Plan(units="blocks.*")',
        )
    yield from _tie_problems(model, plan)
    if layout.tensor > 1:
        yield from _tensor_problems(model, plan, units, layout.tensor)
    if layout.pipeline > 1 and units:
        yield from _end_problems(model, plan, units)


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_modules() if name]


def _tie_problems(model: nn.Module, plan: Plan) -> Iterator[ConfigError]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pair in plan.tied:
        lost = [name for name in pair if name not in parameters]
        for name in lost:
            yield ConfigError(
                f"Plan(tied=…): the model has no parameter {name}",
                hint=f"its parameters are {_some(parameters)}",
            )
        first, second = pair
        if not lost and parameters[first] is not parameters[second]:
            yield ConfigError(
                f"Plan(tied=…): {first} and {second} are two parameters in the model",
                hint=f"tie them where you build it: model.{second} = model.{first}",
            )
    groups: dict[int, list[str]] = {}
    for name, one in parameters.items():
        groups.setdefault(id(one), []).append(name)
    known = {name for pair in plan.tied for name in pair}
    for tied in groups.values():
        if len(tied) > 1 and not set(tied) <= known:
            yield ConfigError(
                f"{' and '.join(tied)} are one parameter, and the plan does not say so",
                hint=f"add it: Plan(tied=(({tied[0]!r}, {tied[1]!r}),), …)",
            )


def _tensor_problems(
    model: nn.Module, plan: Plan, units: Sequence[str], size: int
) -> Iterator[ConfigError]:
    if not plan.columns or not plan.rows:
        yield ConfigError(
            f"parallel.tensor={size}, and the plan cuts no matrices",
            hint="name linear layers: Plan(columns=…, rows=…)",
        )
    yield from _head_problems(plan, size)
    modules = dict(model.named_modules())
    columns = plan.matching(plan.columns, modules)
    rows = plan.matching(plan.rows, modules)
    for name in sorted({*columns} & {*rows}):
        yield ConfigError(f"{name} is in both columns and rows of the plan")
    for field, names in (("columns", columns), ("rows", rows)):
        yield from _cut_problems({name: modules[name] for name in names}, field, size)
    yield from _pair_problems(modules, units, columns, rows)
    yield from _cut_tie_problems(model, plan)


def cut_axis(module: nn.Module, key: str, *, columns: bool) -> int | None:
    """Return along which axis a parameter of a layer in columns, or else in rows, is cut.

    None: each rank has all of it.
    """
    if columns:
        return 0
    if key != "weight":
        return None
    return 0 if isinstance(module, nn.Embedding) else 1


def _cut_tie_problems(model: nn.Module, plan: Plan) -> Iterator[ConfigError]:
    """Yield names of one parameter that would be cut along different axes, or only one of them.

    Stages of a pipeline would add up gradients of different parts, as each sees its own name only.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    columns = {*plan.matching(plan.columns, modules)}
    rows = {*plan.matching(plan.rows, modules)}

    def axis(name: str) -> int | None:
        home, _, key = name.rpartition(".")
        if home not in columns | rows:
            return None
        return cut_axis(modules[home], key, columns=home in columns)

    for first, second in plan.tied:
        if axis(first) != axis(second):
            yield ConfigError(
                f"{second} is tied to {first}, which the plan cuts in another way",
                hint="list both modules as columns, or an embedding in rows and the head in "
                "columns",
            )


def _head_problems(plan: Plan, size: int) -> Iterator[ConfigError]:
    for pattern, counts in plan.heads.items():
        kinds = dict(zip(counts[::-1], ("key-value heads", "attention heads"), strict=True))
        odd = [f"the {one} {kinds[one]}" for one in dict.fromkeys(counts) if one % size]
        if odd:
            yield ConfigError(
                f"parallel.tensor={size} does not divide {' and '.join(odd)} of {pattern}",
                hint="choose a size that divides both numbers of heads",
            )


def _cut_problems(modules: Mapping[str, nn.Module], field: str, size: int) -> Iterator[ConfigError]:
    """Yield which modules cannot be cut, by their kind or their width: each width once."""
    seen: set[int] = set()
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            width = module.out_features if field == "columns" else module.in_features
        elif isinstance(module, nn.Embedding) and field == "rows":
            width = module.num_embeddings
        else:
            yield ConfigError(
                f"Plan({field}=…): {name} is a {type(module).__name__}",
                hint="columns are nn.Linear; rows are nn.Linear or nn.Embedding",
            )
            continue
        if "weight" not in dict(module.named_parameters(recurse=False)):
            yield ConfigError(
                f"{name} computes its weight from other parameters, as with weight_norm, and those "
                "cannot be cut",
                hint="leave the module out of the plan, or normalise in forward",
            )
        if width % size and width not in seen:
            seen.add(width)
            yield ConfigError(
                f"parallel.tensor={size} does not divide {name}, which has {width} to cut",
                hint="choose a size that divides it, or leave the module out of the plan",
            )


def _pair_problems(
    modules: dict[str, nn.Module], units: Sequence[str], columns: Sequence[str], rows: Sequence[str]
) -> Iterator[ConfigError]:
    """Yield several projections in one matrix: cut by rows, each rank would mix them up.

    Nothing else would tell: shapes fit, and losses look alike.
    """
    for unit in units:
        taken = {one.in_features for one in _linears(modules, unit, rows).values()}
        for name, module in _linears(modules, unit, columns).items():
            if taken and all(one % module.out_features for one in taken):
                yield ConfigError(
                    f"{name} has {module.out_features} outputs, and no row layer of {unit} takes "
                    f"as many ({', '.join(map(str, sorted(taken)))}): does it hold several "
                    "projections in one?",
                    hint="make one layer of each projection, such as query, key and value",
                )


def _linears(
    modules: dict[str, nn.Module], unit: str, names: Sequence[str]
) -> dict[str, nn.Linear]:
    """Return those of the names that are linear layers of a unit."""
    inside = {name: modules[name] for name in names if name.startswith(unit + ".")}
    return {name: one for name, one in inside.items() if isinstance(one, nn.Linear)}


def _end_problems(model: nn.Module, plan: Plan, units: Sequence[str]) -> Iterator[ConfigError]:
    """Yield the parameters that belong neither to a unit nor to an end."""
    homes = [*plan.first, *plan.last]
    for name, _ in model.named_parameters():
        parts = name.split(".")[:-1]
        inside = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        if any(one in units for one in inside):
            continue
        if not any(is_match(one, home) for one in inside for home in homes):
            yield ConfigError(
                f"parallel.{MeshAxis.pipeline}: {name} belongs to no unit, and the plan does not "
                "say whether it runs before or after them",
                hint="name its module: Plan(first=…) or Plan(last=…)",
            )


def _near_words(patterns: Sequence[str], names: Iterable[str]) -> str:
    """Return which modules were probably meant, and as patterns which there are."""
    known = list(dict.fromkeys(re.sub(r"(?<=\.)\d+\b", "*", one) for one in names))
    near = dict.fromkeys(
        found for one in patterns for found in get_close_matches(one, known, n=1, cutoff=0.8)
    )
    question = f"did you mean {' and '.join(near)}? " if near else ""
    return f"{question}its modules are {_some(known, _SHOWN_PATTERNS)}"


def _some(names: Iterable[str], most: int = _SHOWN) -> str:
    listed = list(names)
    shown = ", ".join(listed[:most])
    return shown if len(listed) <= most else f"{shown}, …"
