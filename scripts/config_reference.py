"""Writes docs/reference/configuration.md from the schema, its docstrings and conf/.

    python scripts/config_reference.py           # writes the page
    python scripts/config_reference.py --print   # prints it

A test holds that the page is what this prints.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import yaml

from hpckit.features.staging.items import OutItem, StageItem
from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import Data
from hpckit.model.stages import DependencyType
from hpckit.planning.checks.slips import SLURM_ONLY
from hpckit.planning.stages import STAGE_KEYS, StageSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
GROUPS = (
    *(
        "cluster",
        "resources",
        "container",
        "data",
        "parallel",
        "checkpoint",
        "recovery",
        "preflight",
        "observe",
    ),
    *("tracker", "notify", "experiment"),
)
HEAD = """\
<!-- Made by scripts/config_reference.py from the docstrings of hpckit/model. -->

# Configuration keys

Every key that hpckit reads. The [configuration guide](../guides/configuration.md) says how to set
them; `hpckit launch --cfg` shows their values for a launch, and `--cfg resources` one section.

The end of a name is its unit: `_s` seconds, `_min` minutes, `_hours` hours, `_gb` gigabytes, `_mb`
megabytes. A key without a type takes what its default is (`0.0` any number, `0` an integer), or
one of the words in its row. *Default* is what the shipped configuration sets. The value in brackets
holds if the group is left out (`~recovery`). **(Slurm)**: the local executor ignores the key.

## The root

The keys of this table, `stages`, `experiment` and these sections belong to hpckit: {names}.
Keys of your own need other names. They reach your code untouched.
"""
STAGES = """\
## stages

`stages` maps the name of each stage to its keys. Stages follow each other in this order
([guide](../guides/stages.md)). A name has small letters, digits and `_`, and begins with a letter.
"""
DATA = """\
## data

What is on a node before its ranks start ([guide](../guides/staging.md)). These keys are there with
`data=stage` alone. Without it, a key or group of the name `data` is yours.
"""
RESTARTS = """\
The causes of `recovery.restarts` are {causes} ([meanings](cli/status.md#causes)).
"""
OPTIONS = """\
## What the shipped options set

`GROUP=OPTION` chooses an option, such as `resources=one_gpu`. Files of your own
([how](../guides/configuration.md#your-folder-of-configuration)) add options or replace these.
"""
SAID_BY_VALUES = {"parallel", "checkpoint", "observe", "notify"}
"""Groups of which what an option sets says all."""
HEADER = ("| key | type, default | meaning |", "|---|---|---|")
TYPES = {str: "text", int: "integer", float: "number", Any: "text or list"}


def reference() -> str:
    """Return the page."""
    fields = dataclasses.fields(LaunchConfig)
    hints = typing.get_type_hints(LaunchConfig)
    sections = {field.name: hints[field.name] for field in fields if field.name in _sections(hints)}
    names = ", ".join(f"[`{name}`](#{name})" for name in sections)
    parts = [HEAD.format(names=names), *_table(LaunchConfig, "")]
    for name, kind in sections.items():
        parts += [f"## {name}", inspect.cleandoc(kind.__doc__ or ""), *_table(kind, f"{name}.")]
        if name == "recovery":
            parts.append(RESTARTS.format(causes=_listed(RESTARTABLE)))
    parts += [
        DATA,
        *_table(Data, "data."),
        *_entries("data.stage", StageItem),
        *_entries("data.out", OutItem),
    ]
    parts += [STAGES, *_stages(), OPTIONS]
    for group in GROUPS:
        parts += [f"### {group} options", *_options(group)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sections(hints: Mapping[str, Any]) -> set[str]:
    return {name for name, hint in hints.items() if dataclasses.is_dataclass(hint)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(kind: type[Any], prefix: str) -> Iterator[str]:
    yield "\n".join([*HEADER, *_rows(kind, prefix)])


def _rows(kind: type[Any], prefix: str) -> Iterator[str]:
    """Yield a row for each key; a section has those of its own sections, too."""
    hints, words = typing.get_type_hints(kind), docstrings(kind)
    for field in dataclasses.fields(kind):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint) and prefix:
            yield from _rows(typing.cast("type[Any]", hint), f"{key}.")
        if dataclasses.is_dataclass(hint) or key == "stages":
            continue
        if field.name not in words:
            sys.exit(f"{kind.__name__}.{field.name} has no docstring below it")
        meaning = words[field.name] + _allowed(hint)
        if key in SLURM_ONLY:
            meaning += " **(Slurm)**"
        kind_of_value = "" if hint in {int, float} else _type(hint)
        yield _row(f"`{key}`", f"{kind_of_value}{_default(field, key)}", meaning)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field or member of a class, as one line."""
    module = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    body = next(
        one.body for one in module.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__
    )
    found: dict[str, str] = {}
    for line, following in itertools.pairwise(body):
        name = _assigned(line)
        if name and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[name] = " ".join(str(following.value.value).split())
    return found


def _assigned(line: ast.stmt) -> str:
    target: ast.expr | None = line.target if isinstance(line, ast.AnnAssign) else None
    if isinstance(line, ast.Assign):
        target = line.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _allowed(hint: Any) -> str:
    hint = next((one for one in typing.get_args(hint) if isinstance(one, EnumType)), hint)
    if not isinstance(hint, EnumType):
        return ""
    words = docstrings(hint)
    return "".join(f" `{name}`: {words[name]}." for name in hint.__members__)


def _type(hint: Any) -> str:
    """Return the type with a space behind it, or nothing where the row lists what is allowed."""
    arguments = [one for one in typing.get_args(hint) if one is not type(None)]
    if isinstance(hint, types.UnionType):
        return " or ".join(dict.fromkeys(_type(argument).strip() for argument in arguments)) + " "
    if typing.get_origin(hint) is list:
        return f"{_plural(_type(arguments[0]).strip() or 'words')} "
    if typing.get_origin(hint) is dict:
        return "mapping " + ("" if arguments[1] is Any else f"of {_plural(_type(arguments[1]))} ")
    if isinstance(hint, EnumType) or hint is bool:
        return ""
    return "mapping " if dataclasses.is_dataclass(hint) else f"{TYPES[hint]} "


def _plural(words: str) -> str:
    first, _, rest = words.strip().partition(" ")
    return f"{first}s {rest}".strip().replace("wordss", "words")


def _default(field: dataclasses.Field[Any], key: str) -> str:
    factory = field.default_factory
    if field.default is dataclasses.MISSING and factory is dataclasses.MISSING:
        return "needed"
    built_in = _yaml(field.default if factory is dataclasses.MISSING else factory())
    shipped = _shipped().get(key, _UNSET)
    if shipped is _UNSET or _yaml(shipped) == built_in:
        return f"`{built_in}`"
    if isinstance(shipped, dict):
        return f"[these](#recovery-options) (`{built_in}`)"
    return f"`{_yaml(shipped)}` (`{built_in}`)"


_UNSET = object()


def _shipped() -> dict[str, Any]:
    """Return what the default options of the shipped configuration set, by dotted keys."""
    head = yaml.safe_load((ROOT / "conf" / "hpckit.yaml").read_text())
    chosen = [next(iter(one.items())) for one in head["defaults"] if isinstance(one, dict)]
    found = {key: value for key, value in head.items() if key != "defaults"}
    for group, option in chosen:
        text = (ROOT / "conf" / group / f"{option}.yaml").read_text()
        found |= {f"{group}.{key}": value for key, value in yaml.safe_load(text).items()}
    return found


def _yaml(value: Any) -> str:
    plain = value.value if isinstance(value, Enum) else value
    text: str = yaml.safe_dump(plain, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _entries(section: str, kind: type[Any]) -> Iterator[str]:
    """Yield a table of the keys of each entry of a section."""
    yield "\n".join(
        row
        for row in [*HEADER, *_rows(kind, f"{section}.NAME.")]
        if not row.startswith(f"| `{section}.NAME.name`")
    )


def _stages() -> Iterator[str]:
    words = docstrings(StageSettings)
    values = {"overrides": "texts `[]`", "once": "`false`", "after": "see there"}
    rows = list(HEADER)
    for name in STAGE_KEYS:
        meaning = words[name] + (_allowed(DependencyType) if name == "after" else "")
        rows.append(_row(f"`stages.NAME.{name}`", values[name], meaning))
    yield "\n".join(rows)


def _options(group: str) -> Iterator[str]:
    files = sorted((ROOT / "conf" / group).glob("*.yaml"))
    sets = {file.stem: _sets(file, group) for file in files}
    first = next(iter(sets.values())).strip("`").partition("=")[0]
    if all(one.replace("'", "") == f"`{first}={name}`" for name, one in sets.items()):
        yield f"{_listed(sets)} set [`{group}.{first}`](#{group}), which says what they mean."
        return
    if group in SAID_BY_VALUES:
        rows = [_row("option", "sets"), "|---|---|"]
        yield "\n".join([*rows, *(_row(f"`{name}`", one) for name, one in sets.items())])
        return
    rows = ["| option | meaning | sets |", "|---|---|---|"]
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows.append(_row(f"`{file.stem}`", _comment(lines), sets[file.stem]))
    yield "\n".join(rows)


def _comment(lines: list[str]) -> str:
    """Return the first sentence of what an option's file says about it."""
    head = [line for line in lines if not line.startswith("# @package")]
    count = next(index for index, line in enumerate(head) if not line.startswith("#"))
    text = " ".join(line.removeprefix("#").strip() for line in head[:count])
    return text.partition(". ")[0].rstrip(".")


def _sets(file: Path, group: str) -> str:
    """Return what an option sets of hpckit's keys; its group's name is left out."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    chosen = [
        f"{k.removeprefix('override /')}={v}" for one in values.pop("defaults", ()) for k, v in one.items()
    ]
    leaves = [
        f"{key.removeprefix(f'{group}.')}={_yaml(value).replace(', ', ',')}"
        for key, value in _leaves(values)
        if group != "experiment" or key.partition(".")[0] in LaunchConfig.__dataclass_fields__
    ]
    return ", ".join(f"`{one}`" for one in [*chosen, *leaves])


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        print(reference(), end="")
    else:
        PAGE.write_text(reference(), encoding="utf-8")
