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
from collections.abc import Iterator, Mapping
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import yaml

from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import SLURM_ONLY, LaunchConfig
from hpckit.model.stages import DependencyType
from hpckit.planning.stages import STAGE_KEYS, StageSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
GROUPS = (
    *(
        "cluster",
        "resources",
        "parallel",
        "checkpoint",
        "recovery",
        "preflight",
        "observe",
        "tracker",
    ),
    *("notify", "experiment"),
)
HEAD = """\
<!-- Made by scripts/config_reference.py from the docstrings of hpckit/model/launch.py. -->

# Configuration keys

Every key that hpckit reads. The [configuration guide](../guides/configuration.md) says how to set
them; `hpckit launch --cfg` shows their values for a launch, and `--cfg resources` one section.

The end of a name is its unit: `_s` seconds, `_min` minutes, `_hours` hours, `_gb` gigabytes, `_mb`
megabytes. *Default* is the value that the shipped configuration gives a launch. If it differs, the
built-in value follows in brackets: it remains if the group is left out (`~recovery`).
**Slurm only**: the local executor (`cluster=local`) ignores the key.

## The root

These names at the root belong to hpckit: {names}.
Keys of your own need other names. They reach your code untouched.
"""
SECTIONS = "The sections {names} have tables of their own below."
STAGES = """\
## stages

`stages` maps the name of a stage to its keys. Stages follow each other in this order
([guide](../guides/stages.md)). A name has small letters, digits and `_`, and begins with a letter.
"""
RESTARTS = """\
The causes that `recovery.restarts` takes are {causes}.
[`hpckit status`](cli/status.md#causes) says what each of them means.
"""
OPTIONS = """\
## What the shipped options set

A group is chosen with `GROUP=OPTION`, such as `resources=one_gpu`. Files of your own
([how](../guides/configuration.md#your-folder-of-configuration)) add options or replace these.
"""
TYPES = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "text or list"}


def reference() -> str:
    """Return the page."""
    fields = dataclasses.fields(LaunchConfig)
    hints = typing.get_type_hints(LaunchConfig)
    sections = {one.name: hints[one.name] for one in fields if one.name in _sections(hints)}
    names = [*(one.name for one in fields), "experiment"]
    parts = [HEAD.format(names=_listed(names)), *_table(LaunchConfig, "")]
    parts.append(SECTIONS.format(names=", ".join(f"[`{name}`](#{name})" for name in sections)))
    for name, kind in sections.items():
        parts += [f"## {name}", inspect.cleandoc(kind.__doc__ or ""), *_table(kind, f"{name}.")]
        if name == "recovery":
            parts.append(RESTARTS.format(causes=_listed(RESTARTABLE)))
    parts += [STAGES, *_stages(), OPTIONS]
    for group in GROUPS:
        parts += [f"### {group} options", *_options(group)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sections(hints: Mapping[str, Any]) -> set[str]:
    return {name for name, hint in hints.items() if dataclasses.is_dataclass(hint)}


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(kind: type[Any], prefix: str) -> Iterator[str]:
    yield "\n".join(
        ["| key | type | default | meaning |", "|---|---|---|---|", *_rows(kind, prefix)]
    )


def _rows(kind: type[Any], prefix: str) -> Iterator[str]:
    """Yield a row for each key; a section has those of its own sections, too."""
    hints, words = typing.get_type_hints(kind), docstrings(kind)
    for field in dataclasses.fields(kind):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint) and prefix:
            yield from _rows(hint, f"{key}.")
        if dataclasses.is_dataclass(hint) or key == "stages":
            continue
        if field.name not in words:
            sys.exit(f"{kind.__name__}.{field.name} has no docstring below it")
        meaning = words[field.name] + _allowed(hint)
        if key in SLURM_ONLY:
            meaning += " **Slurm only.**"
        yield _row(f"`{key}`", _type(hint), _default(field, key), meaning)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field or member of a class, as one line."""
    module = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    body = next(
        one.body
        for one in module.body
        if isinstance(one, ast.ClassDef) and one.name == kind.__name__
    )
    found: dict[str, str] = {}
    for line, following in itertools.pairwise(body):
        name = _assigned(line)
        if name and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[name] = " ".join(str(following.value.value).split())
    return found


def _assigned(line: ast.stmt) -> str:
    target = line.target if isinstance(line, ast.AnnAssign) else None
    if isinstance(line, ast.Assign):
        target = line.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _allowed(hint: Any) -> str:
    if not isinstance(hint, EnumType):
        return ""
    words = docstrings(hint)
    return " " + "; ".join(f"`{name}`: {words[name]}" for name in hint.__members__) + "."


def _type(hint: Any) -> str:
    if isinstance(hint, EnumType):
        return "one of these"
    if isinstance(hint, types.UnionType):
        inner = [one for one in typing.get_args(hint) if one is not type(None)]
        return f"{_type(inner[0])} or null"
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        first, *rest = _type(arguments[0]).split(" ", 1)
        return " ".join(["list of", f"{first}s", *rest])
    if typing.get_origin(hint) is dict:
        of = "" if arguments[1] is Any else f" of {_plural(_type(arguments[1]))}"
        return f"mapping{of}"
    return "mapping" if dataclasses.is_dataclass(hint) else TYPES[hint]


def _plural(words: str) -> str:
    first, _, rest = words.partition(" ")
    return f"{first}s {rest}".strip()


def _default(field: dataclasses.Field[Any], key: str) -> str:
    factory = field.default_factory
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


def _stages() -> Iterator[str]:
    words = docstrings(StageSettings)
    kinds = {"overrides": "list of texts", "once": "true or false", "after": "one of these"}
    defaults = {"overrides": "`[]`", "once": "`false`", "after": "see there"}
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name in STAGE_KEYS:
        meaning = words[name] + (_allowed(DependencyType) if name == "after" else "")
        rows.append(_row(f"`stages.NAME.{name}`", kinds[name], defaults[name], meaning))
    yield "\n".join(rows)


def _options(group: str) -> Iterator[str]:
    rows = ["| option | what it is | what it sets |", "|---|---|---|"]
    for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        rows.append(_row(f"`{file.stem}`", _comment(lines), _sets(file, group)))
    yield "\n".join(rows)


def _comment(lines: list[str]) -> str:
    head = [line for line in lines if not line.startswith("# @package")]
    count = next(index for index, line in enumerate(head) if not line.startswith("#"))
    return " ".join(line.removeprefix("#").strip() for line in head[:count])


def _sets(file: Path, group: str) -> str:
    text = file.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    prefix = "" if "@package _global_" in text else f"{group}."
    chosen = [
        f"{k.removeprefix('override /')}={v}"
        for one in values.pop("defaults", ())
        for k, v in one.items()
    ]
    leaves = [f"{prefix}{key}: {_yaml(value)}" for key, value in _leaves(values)]
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
