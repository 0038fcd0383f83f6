"""Whether a plan fits a model and its layout, before the model is cut. Errors name the module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate

from torch import nn

from hpckit.errors import ConfigError
from hpckit.model.counted import format_short_list
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.plan import Plan, name_matches_pattern

_SHOWN, _SHOWN_PATTERNS = 5, 20
_NEAR = 0.8
"""How much a name has in common with what was typed, to be what was meant; of 1."""
_MOST_SIZE = 64
"""No published run has a larger size of tensor parallelism."""


def check_plan_and_list_units(model: nn.Module, plan: Plan, layout: Layout) -> tuple[str, ...]:
    """Return the names of the plan's units in this model, in order; raises ConfigError."""
    for problem in find_plan_problems(model, plan, layout):
        raise problem
    return list_plan_units(model, plan)


def list_plan_units(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Return the names of the modules that a plan says repeat, in order."""
    return tuple(plan.match_names(plan.units, _list_module_names(model)))


def find_plan_problems(model: nn.Module, plan: Plan, layout: Layout) -> Iterator[ConfigError]:
    """Yield all that does not fit together; the model may be on any device, also on meta."""
    names = _list_module_names(model)
    unmatched = plan.find_unmatched_patterns(names)
    for field, patterns in unmatched.items():
        yield ConfigError(
            f"Plan({field}=…): {', '.join(patterns)} matches no module of the model",
            hint=_suggest_modules(patterns, model),
        )
    units = list_plan_units(model, plan)
    if not units and not unmatched and layout.replica_size > 1:
        yield ConfigError(
            f"the plan names no units, but the layout {layout} needs them",
            hint='name what repeats, for example Plan(units="blocks.*")',
        )
    yield from _find_tied_weight_problems(model, plan)
    if layout.tensor > 1:
        # What a wrong name leaves out makes errors of what goes with it.
        complete = not unmatched.keys() & {"columns", "rows"}
        yield from _find_tensor_parallel_problems(model, plan, units if complete else (), layout.tensor)
    if layout.pipeline > 1 and units:
        yield from _find_unassigned_parameters(model, plan, units)


def _list_module_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_modules() if name]


def _find_tied_weight_problems(model: nn.Module, plan: Plan) -> Iterator[ConfigError]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pair in plan.tied:
        lost = [name for name in pair if name not in parameters]
        for name in lost:
            yield ConfigError(
                f"Plan(tied=…): the model has no parameter {name}",
                hint=f"its parameters are {format_short_list(list(parameters), _SHOWN)}",
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
                f"{' and '.join(tied)} are one parameter, but the plan does not say so",
                hint=f"add it: Plan(tied=(({tied[0]!r}, {tied[1]!r}),), …)",
            )


def _find_tensor_parallel_problems(
    model: nn.Module, plan: Plan, units: Sequence[str], size: int
) -> Iterator[ConfigError]:
    if not plan.columns or not plan.rows:
        yield ConfigError(
            f"parallel.tensor={size} is set, but the plan cuts no matrices",
            hint="name linear layers: Plan(columns=…, rows=…)",
        )
    yield from _find_indivisible_heads(plan, size)
    modules = dict(model.named_modules())
    columns = plan.match_names(plan.columns, modules)
    rows = plan.match_names(plan.rows, modules)
    for name in sorted({*columns} & {*rows}):
        yield ConfigError(f"{name} is in both columns and rows of the plan")
    widths: dict[int, str] = {}
    for field, names in (("columns", columns), ("rows", rows)):
        for name in names:
            yield from _find_uncuttable_module(name, modules[name], field)
            width = _find_width_to_cut(modules[name], field)
            if width is not None:
                widths.setdefault(width, name)
    yield from _find_indivisible_widths(widths, size)
    yield from _find_fused_projections(modules, units, columns, rows)
    yield from _find_unevenly_cut_tied_weights(model, plan)


def find_cut_axis(module: nn.Module, key: str, *, columns: bool) -> int | None:
    """Return along which axis a parameter of a layer in columns, or else in rows, is cut.

    None: each rank has all of it.
    """
    if columns:
        return 0
    if key != "weight":
        return None
    return 0 if isinstance(module, nn.Embedding) else 1


def _find_unevenly_cut_tied_weights(model: nn.Module, plan: Plan) -> Iterator[ConfigError]:
    """Yield names of one parameter that would be cut along different axes, or only one of them.

    Stages of a pipeline would add up gradients of different parts, as each sees its own name only.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    columns = {*plan.match_names(plan.columns, modules)}
    rows = {*plan.match_names(plan.rows, modules)}

    def axis_of_parameter(name: str) -> int | None:
        home, _, key = name.rpartition(".")
        if home not in columns | rows:
            return None
        return find_cut_axis(modules[home], key, columns=home in columns)

    for first, second in plan.tied:
        if axis_of_parameter(first) != axis_of_parameter(second):
            yield ConfigError(
                f"{second} is tied to {first}, which the plan cuts in another way",
                hint="list both modules as columns, or an embedding in rows and the head in columns",
            )


def _find_indivisible_heads(plan: Plan, size: int) -> Iterator[ConfigError]:
    for pattern, counts in plan.heads.items():
        kinds = dict(zip(counts[::-1], ("key-value heads", "attention heads"), strict=True))
        odd = [f"the {fromkey} {kinds[fromkey]}" for fromkey in dict.fromkeys(counts) if fromkey % size]
        if odd:
            yield ConfigError(
                f"parallel.tensor={size} does not divide {' and '.join(odd)} of {pattern}",
                hint=_describe_dividing_tensor_sizes(counts),
            )


def _find_uncuttable_module(name: str, module: nn.Module, field: str) -> Iterator[ConfigError]:
    if _find_width_to_cut(module, field) is None:
        yield ConfigError(
            f"Plan({field}=…): {name} is a {type(module).__name__}",
            hint="columns are nn.Linear; rows are nn.Linear or nn.Embedding",
        )
    elif "weight" not in dict(module.named_parameters(recurse=False)):
        yield ConfigError(
            f"{name} computes its weight from other parameters, as with weight_norm, and those cannot be cut",
            hint="leave the module out of the plan, or normalise in forward",
        )


def _find_width_to_cut(module: nn.Module, field: str) -> int | None:
    if isinstance(module, nn.Linear):
        return module.out_features if field == "columns" else module.in_features
    if isinstance(module, nn.Embedding) and field == "rows":
        return module.num_embeddings
    return None


def _find_indivisible_widths(widths: Mapping[int, str], size: int) -> Iterator[ConfigError]:
    """Yield one error for all widths that are not divided, each with the first module that has it.

    Of a wrong size there is one thing to say, however many layers there are.
    """
    odd = {name: width for width, name in widths.items() if width % size}
    if odd:
        told = format_short_list([f"{name}, which has {width} to cut" for name, width in odd.items()], _SHOWN)
        yield ConfigError(
            f"parallel.tensor={size} does not divide {told}",
            hint=f"{_describe_dividing_tensor_sizes(widths)}; or leave these layers out of the plan",
        )


def _describe_dividing_tensor_sizes(counts: Iterable[int]) -> str:
    whole = math.gcd(*counts)
    sizes = [size for size in range(2, min(whole, _MOST_SIZE) + 1) if whole % size == 0]
    if not sizes:
        return "no size above 1 divides them: keep parallel.tensor=1, or change the model"
    return f"sizes that divide them: {', '.join(map(str, sizes))}"


def _find_fused_projections(
    modules: dict[str, nn.Module], units: Sequence[str], columns: Sequence[str], rows: Sequence[str]
) -> Iterator[ConfigError]:
    """Yield several projections in one matrix: cut by rows, each rank would mix them up.

    Nothing else would tell: shapes fit, and losses look alike.
    """
    for unit in units:
        taken = {linear.in_features for linear in _find_linear_layers(modules, unit, rows).values()}
        for name, module in _find_linear_layers(modules, unit, columns).items():
            if taken and all(size % module.out_features for size in taken):
                yield ConfigError(
                    f"{name} has {module.out_features} outputs, but no row layer of {unit} takes "
                    f"as many ({', '.join(map(str, sorted(taken)))}): does it hold several "
                    "projections in one?",
                    hint="make one layer of each projection, such as query, key and value",
                )


def _find_linear_layers(
    modules: dict[str, nn.Module], unit: str, names: Sequence[str]
) -> dict[str, nn.Linear]:
    inside = {name: modules[name] for name in names if name.startswith(unit + ".")}
    return {name: one for name, one in inside.items() if isinstance(one, nn.Linear)}


def _find_unassigned_parameters(model: nn.Module, plan: Plan, units: Sequence[str]) -> Iterator[ConfigError]:
    homes = [*plan.first, *plan.last]
    for name, _ in model.named_parameters():
        inside = [*accumulate(name.split(".")[:-1], "{}.{}".format)]
        if any(name in units for name in inside):
            continue
        if not any(name_matches_pattern(one, home) for one in inside for home in homes):
            yield ConfigError(
                f"parallel.{MeshAxis.pipeline}: {name} belongs to no unit, and the plan does not "
                "say whether it runs before or after them",
                hint="name its module: Plan(first=…) or Plan(last=…)",
            )


def _suggest_modules(patterns: Sequence[str], model: nn.Module) -> str:
    known = list(dict.fromkeys(_list_name_patterns(model)))
    near = dict.fromkeys(found for pattern in patterns for found in _find_nearest_names(pattern, known))
    question = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{question}its modules are {format_short_list(known, _SHOWN_PATTERNS)}"


def _find_nearest_names(pattern: str, known: Sequence[str]) -> list[str]:
    """Return the names that are most like a pattern, all that are alike: siblings have numbers."""
    likeness = {name: SequenceMatcher(None, pattern, name).ratio() for name in known}
    most = max(likeness.values(), default=0.0)
    return [name for name in known if likeness[name] == most][:_SHOWN] if most >= _NEAR else []


def _list_name_patterns(model: nn.Module, prefix: str = "") -> Iterator[str]:
    """Yield the names of modules, those that repeat as `*`: numbered ones of one class."""
    children = dict(model.named_children())
    alike = len({type(child) for child in children.values()}) == 1
    repeat = alike and all(name.isdecimal() for name in children)
    for name, child in children.items():
        inner = f"{prefix}{'*' if repeat else name}"
        yield inner
        yield from _list_name_patterns(child, f"{inner}.")
