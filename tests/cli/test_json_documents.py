"""What `--json` prints, beside a golden file: names, their order, types, and the form of numbers.

`HPCKIT_UPDATE_GOLDEN=1 pytest tests/cli/test_json_documents.py` writes the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from cli_world import START, Desk, Shell
from report_launches import swept_launch, troubled_launch

from hpckit.cli.commands.act import grow
from hpckit.cli.commands.look.nodes import nodes_to_json
from hpckit.cli.commands.look.stacks import stacks_to_json
from hpckit.cli.commands.maintain import clean, doctor, rm
from hpckit.cli.commands.start.check import check_report_to_json
from hpckit.features.capacity.machine import layout_search_to_json, plan_to_json
from hpckit.features.interconnect.model import SlowLink
from hpckit.features.interconnect.text import interconnect_to_json
from hpckit.features.profiling.text import profile_to_json
from hpckit.model.plain import to_plain
from hpckit.operations.resume import skipped_runs_to_json
from hpckit.report.checkpoints import checkpoints_to_json
from hpckit.report.comparison import comparison_to_json
from hpckit.report.description import description_to_json
from hpckit.report.diagnosis import findings_to_json
from hpckit.report.environment import environment_to_json
from hpckit.report.live import progress_to_json
from hpckit.report.machine import launches_to_json, results_to_json, run_row_to_json, spread_to_json
from hpckit.values import is_dataclass

GOLDEN = Path(__file__).parents[1] / "golden" / "json_documents.json"
PLAIN: Mapping[Any, Any] = {
    str: "text",
    int: 1,
    float: 0.12345678,
    bool: True,
    timedelta: timedelta(seconds=90.1234),
    Path: Path("/data/file"),
    Any: 1.5,
    object: "object",
    SlowLink: SlowLink(first=0, second=0),
    tuple[int, ...]: (0,),
}


def sample(hint: Any, *, whole: bool) -> Any:
    """Return a value of a type: what may be missing is there if `whole`, and else is not."""
    origin, members = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (types.UnionType, Union):
        return None if not whole and type(None) in members else sample(members[0], whole=whole)
    if origin is not None:
        fixed = origin is tuple and ... not in members
        items = [sample(member, whole=whole) for member in members if member is not ... and (whole or fixed)]
        of_pairs = issubclass(origin, Mapping)
        return dict([items] if items else ()) if of_pairs else tuple(items)
    if issubclass(hint, Enum):
        return next(iter(hint))
    return filled(hint, whole=whole) if is_dataclass(hint) else START


def filled(kind: Any, *, whole: bool) -> Any:
    """Return a dataclass with a sample in each field."""
    hints = get_type_hints(kind)
    given = [field.name for field in dataclasses.fields(kind) if field.init]
    return kind(**{name: sample(hints[name], whole=whole) for name in given})


def called(function: Callable[..., Any], *, whole: bool) -> Any:
    """Return what a function makes of samples of its parameters."""
    hints = get_type_hints(function)
    del hints["return"]
    return to_plain(function(**{name: sample(hint, whole=whole) for name, hint in hints.items()}))


BUILDERS: Mapping[str, Callable[..., Any]] = {
    "bench": interconnect_to_json,
    "check": check_report_to_json,
    "checkpoint": checkpoints_to_json,
    "clean": clean._cleanups_to_json,  # noqa: SLF001
    "diff": comparison_to_json,
    "doctor": doctor._unconfirmed_job_to_json,  # noqa: SLF001
    "doctor --env": environment_to_json,
    "findings of a run": findings_to_json,
    "grow": grow._growth_to_json,  # noqa: SLF001
    "ls": launches_to_json,
    "nodes": nodes_to_json,
    "plan": plan_to_json,
    "plan that searches": layout_search_to_json,
    "profile": profile_to_json,
    "results": results_to_json,
    "results --over": spread_to_json,
    "rm": rm._removals_to_json,  # noqa: SLF001
    "run of status": run_row_to_json,
    "show": description_to_json,
    "skipped runs": skipped_runs_to_json,
    "stacks": stacks_to_json,
    "waiting": progress_to_json,
}


def shape(value: Any) -> Any:
    """Return plain values as the names of their types; of a list each that occurs in it, once."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return list({json.dumps(found): found for found in map(shape, value)}.values())
    return type(value).__name__


LOOKED_AT: tuple[tuple[str, ...], ...] = (
    ("status", "llm"),
    ("status", "sweep"),
    ("results", "sweep"),
    ("results", "sweep", "--over", "seed"),
    ("show", "llm"),
    ("show", "sweep"),
    ("diff", "sweep.0", "sweep.7"),
    ("ls",),
    ("logs", "llm"),
    ("nodes",),
    ("checkpoint", "ls", "llm"),
    ("report", "llm"),
    ("clean",),
    ("rm", "sweep", "--dry-run"),
    ("doctor",),
)
EIGHT = ("--gpu", "H100-SXM", "--gpus", "8")
LOCAL = ("cluster=local", "experiment=command", "command=sleep 60", "code.snapshot=false")
WRITTEN: tuple[tuple[str, ...], ...] = (
    ("launch", "--dry-run", *LOCAL, "-m", "seed=1,2"),
    ("check", *LOCAL),
    ("render", *LOCAL),
    ("plan", *EIGHT, "--model", "llama2-7b", "--tokens", "1e9"),
    ("plan", *EIGHT, "--model", "parameters=7e9", "--parallel", "shard=8"),
    ("plan", *EIGHT, "--model", "gpt3-175b"),
)


def test_documents_are_those_of_the_golden_file(desk: Desk, shell: Shell) -> None:
    """A program that read yesterday's finds the same names in the same order, and the same forms.

    Of verbs that look, the types of values; of builders that take values, the values too.
    """
    troubled_launch(desk)
    swept_launch(desk, 8, steps=20)
    found = {
        f"{name}, {'all' if whole else 'least'}": called(builder, whole=whole)
        for name, builder in BUILDERS.items()
        for whole in (True, False)
    }
    said = {words: desk.say(*words, "--json") for words in LOOKED_AT}
    said |= {words: shell(*words, "--json") for words in WRITTEN}
    for words, answer in said.items():
        assert answer.out, (words, answer.err)
        found["hpckit " + " ".join(words)] = shape(json.loads(answer.out))
    text = json.dumps(found, indent=1) + "\n"
    if os.environ.get("HPCKIT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
