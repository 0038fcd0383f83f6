"""Whether a plan fits a model and its layout, before the model is cut. Errors name the module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from hpckit.errors import ConfigError
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.plan import Plan, is_match

_SHOWN = 5


def check_plan(model: nn.Module, plan: Plan, layout: Layout) -> tuple[str, ...]:
    """Return the names of the plan's units in this model, in order; raises ConfigError."""
    names = [name for name, _ in model.named_modules() if name]
    for field, patterns in plan.unmatched(names).items():
        raise ConfigError(
            f"Plan({field}=…): {', '.join(patterns)} matches no module of the model",
            hint=f"its modules are {_some(names)}",
        )
    units = tuple(plan.matching(plan.units, names))
    if not units and layout.replica_size > 1:
        raise ConfigError(
            f"the plan names no units, and the model is to be laid out as {layout}",
            hint='name what repeats, for example Plan(units="blocks.*")',
        )
    _check_ties(model, plan)
    if layout.tensor > 1:
        _check_tensor(model, plan, units, layout.tensor)
    if layout.pipeline > 1:
        _check_ends(model, plan, units)
    return units


def _check_ties(model: nn.Module, plan: Plan) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pair in plan.tied:
        for name in pair:
            if name not in parameters:
                raise ConfigError(
                    f"Plan(tied=…): the model has no parameter {name}",
                    hint=f"its parameters are {_some(parameters)}",
                )
        first, second = pair
        if parameters[first] is not parameters[second]:
            raise ConfigError(
                f"Plan(tied=…): {first} and {second} are two parameters in the model",
                hint=f"tie them where you build it: model.{second} = model.{first}",
            )
    groups: dict[int, list[str]] = {}
    for name, one in parameters.items():
        groups.setdefault(id(one), []).append(name)
    known = {name for pair in plan.tied for name in pair}
    for tied in groups.values():
        if len(tied) > 1 and not set(tied) <= known:
            raise ConfigError(
                f"{' and '.join(tied)} are one parameter, and the plan does not say so",
                hint=f"add it: Plan(tied=(({tied[0]!r}, {tied[1]!r}),), …)",
            )


def _check_tensor(model: nn.Module, plan: Plan, units: Sequence[str], size: int) -> None:
    if not plan.columns or not plan.rows:
        raise ConfigError(
            f"parallel.tensor={size}, and the plan cuts no matrices",
            hint="name linear layers: Plan(columns=…, rows=…)",
        )
    for pattern, counts in plan.heads.items():
        for what, count in zip(("attention heads", "key-value heads"), counts, strict=True):
            if count % size:
                raise ConfigError(
                    f"parallel.tensor={size} does not divide the {count} {what} of {pattern}",
                    hint="choose a size that divides both numbers of heads",
                )
    modules = dict(model.named_modules())
    columns = plan.matching(plan.columns, modules)
    rows = plan.matching(plan.rows, modules)
    if both := sorted({*columns} & {*rows}):
        raise ConfigError(f"{both[0]} is in both columns and rows of the plan")
    for name in columns:
        _check_divides(name, _linear(name, modules[name], "columns").out_features, size)
    for name in rows:
        module = modules[name]
        width = (
            module.num_embeddings
            if isinstance(module, nn.Embedding)
            else _linear(name, module, "rows").in_features
        )
        _check_divides(name, width, size)
    _check_pairs(modules, units, columns, rows)


def _linear(name: str, module: nn.Module, field: str) -> nn.Linear:
    if isinstance(module, nn.Linear):
        return module
    raise ConfigError(
        f"Plan({field}=…): {name} is a {type(module).__name__}",
        hint="columns are nn.Linear; rows are nn.Linear or nn.Embedding",
    )


def _check_divides(name: str, width: int, size: int) -> None:
    if width % size:
        raise ConfigError(
            f"parallel.tensor={size} does not divide {name}, which has {width} to cut",
            hint="choose a size that divides it, or leave the module out of the plan",
        )


def _check_pairs(
    modules: dict[str, nn.Module], units: Sequence[str], columns: Sequence[str], rows: Sequence[str]
) -> None:
    """Refuse several projections in one matrix: cut by rows, each rank would mix them up.

    Nothing else would tell: shapes fit, and losses look alike.
    """
    for unit in units:
        taken = {one.in_features for one in _linears(modules, unit, rows).values()}
        for name, module in _linears(modules, unit, columns).items():
            if taken and all(one % module.out_features for one in taken):
                raise ConfigError(
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


def _check_ends(model: nn.Module, plan: Plan, units: Sequence[str]) -> None:
    """Check that every parameter belongs to a unit or to an end."""
    homes = [*plan.first, *plan.last]
    for name, _ in model.named_parameters():
        parts = name.split(".")[:-1]
        inside = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        if any(one in units for one in inside):
            continue
        if not any(is_match(one, home) for one in inside for home in homes):
            raise ConfigError(
                f"parallel.{MeshAxis.pipeline}: {name} belongs to no unit, and the plan does not "
                "say whether it runs before or after them",
                hint="name its module: Plan(first=…) or Plan(last=…)",
            )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:_SHOWN])
    return shown if len(listed) <= _SHOWN else f"{shown}, …"
