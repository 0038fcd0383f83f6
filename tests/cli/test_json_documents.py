"""What `--json` prints, beside a golden file: names, their order, types, and the form of numbers.

`HPCKIT_UPDATE_GOLDEN=1 pytest tests/cli/test_json_documents.py` writes the file, and widens the schemas.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from cli_world import START, Desk, Shell
from json_schemas import ANYTHING, LINES, WORD, Schema, form_of, learn, read_schemas, write_schemas
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
from hpckit.features.reporting.forms import report_to_json
from hpckit.model.plain import to_plain
from hpckit.model.states import RunState
from hpckit.operations.resume import skipped_runs_to_json
from hpckit.report.checkpoints import checkpoints_to_json
from hpckit.report.comparison import comparison_to_json
from hpckit.report.description import description_to_json
from hpckit.report.diagnosis import findings_to_json
from hpckit.report.environment import environment_to_json
from hpckit.report.live import progress_to_json
from hpckit.report.machine import (
    launches_to_json,
    results_to_json,
    run_row_to_json,
    spread_to_json,
    status_to_json,
)
from hpckit.values import is_dataclass

UPDATE = bool(os.environ.get("HPCKIT_UPDATE_GOLDEN"))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Makes values of types: what may be missing is there if `whole`, and else is not.

    `pick` chooses among the members of enums and unions: the first, or for schemas each in turn.
    """

    whole: bool
    plain: Mapping[Any, Any] = dataclasses.field(default_factory=lambda: PLAIN)
    pick: int = 0
    words: set[str] = dataclasses.field(default_factory=set)

    def sample(self, hint: Any) -> Any:
        """Return a value of a type."""
        origin, members = get_origin(hint), get_args(hint)
        if hint in self.plain:
            return self.plain[hint]
        if origin in (types.UnionType, Union):
            some = [member for member in members if member is not type(None)]
            missing = not self.whole and len(some) < len(members)
            return None if missing else self.sample(some[self.pick % len(some)])
        if origin is not None:
            fixed = origin is tuple and ... not in members
            shown = [member for member in members if member is not ... and (self.whole or fixed)]
            items = [*map(self.sample, shown)]
            of_pairs = issubclass(origin, Mapping)
            return dict([items] if items else ()) if of_pairs else tuple(items)
        if issubclass(hint, Enum):
            self.words.update(str(one.value) for one in hint)
            return [*hint][self.pick % len(hint)]
        return self.filled(hint) if is_dataclass(hint) else START

    def filled(self, kind: Any) -> Any:
        """Return a dataclass with a sample in each field."""
        hints = get_type_hints(kind)
        given = [field.name for field in dataclasses.fields(kind) if field.init]
        return kind(**{name: self.sample(hints[name]) for name in given})

    def call(self, function: Callable[..., Any]) -> Any:
        """Return what a function makes of samples of its parameters."""
        hints = get_type_hints(function)
        del hints["return"]
        return to_plain(function(**{name: self.sample(hint) for name, hint in hints.items()}))


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


PLACES: Mapping[str, Sequence[str]] = {
    "doctor": ("doctor/unconfirmed/*",),
    "doctor --env": ("doctor --env",),
    "findings of a run": (),
    "plan that searches": ("plan --search",),
    "results --over": ("results --over",),
    "run of status": ("status/runs/*", "report/runs/*"),
    "skipped runs": ("resume/skipped",),
    "waiting": ("status --watch: each line",),
}
"""Where builders' documents stand in those of verbs; the others are the verb's, whole or a part."""
PARTS = ("results", "results --over", "status")
"""Of these documents, other code adds fields at the top."""
SCHEMA_BUILDERS: Mapping[str, Callable[..., Any]] = {
    **BUILDERS,
    "report": report_to_json,
    "status": status_to_json,
}
MOST_MEMBERS = 40
FREE = {**PLAIN, str: WORD, Any: ANYTHING, object: ANYTHING}

STARTS = ("launch", "rerun", "resume", "render")
MAYBE = (None, WORD)
ANY_MAP = ({WORD: ANYTHING},)
NODE = {"name": WORD, "address": WORD, "slurmd": True, "link": True, "state": WORD}
SANDBOX = {
    "state": WORD,
    "options": {WORD: ANYTHING},
    "daemons": {WORD: True},
    "nodes": [NODE],
    **dict.fromkeys(("bin_dir", "slurm_conf", "log_dir"), WORD),
}
SCRIPTS = ([{"path": WORD, "text": WORD}],)
TOLD: Sequence[tuple[Sequence[str], str, Sequence[Any]]] = (
    *((STARTS, field, MAYBE) for field in ("auto_resume_job", "backlog_job", "runs/*/job", "runs/*/stage")),
    (("launch", "rerun", "resume", "grow"), "scripts", SCRIPTS),
    (("render",), "scripts", ([WORD],)),
    (("launch", "rerun"), "left_out", ([WORD],)),
    *((("launch",), f"{known}/*/state", tuple(RunState)) for known in ("skipped", "adopted")),
    *((("launch",), f"adopted/*/differs/*/{field}", (ANYTHING,)) for field in ("has", "asked")),
    (("watch", "cancel"), "runs/*/state", tuple(RunState)),
    (("watch",), "runs/*/reason", MAYBE),
    (("cancel",), "runs/*/job", MAYBE),
    (("cancel",), "runs/*/outcome", ("requested", "would_request", "already_ended")),
    (("chaos",), "outcome", ("planned", "injected", "missed", "dry run")),
    *((("chaos",), field, (None, 7)) for field in ("attempt", "round", "step", "seed")),
    (("chaos",), "after_s", (None, 1.5)),
    (("shrink",), "", ({"run": WORD, "replicas": 2, "wanted": 1},)),
    (("nodes --forget",), "", ({"forgotten": WORD},)),
    (("show --config",), "", (ANYTHING,)),
    (("status",), "auto_resume_job", MAYBE),
    (("status",), "queue_age_s", (None, 1.5)),
    *((("status",), f"energy/{field}", (None, 1.5)) for field in ("j_per_step", "j_per_sample")),
    (("status",), "foreign", (None, {"uid": 1000, "owner": WORD, "reason": WORD})),
    (("status", "results", "report"), "runs/*/overrides", ANY_MAP),
    (("results --over",), "groups/*/overrides", ANY_MAP),
    (("results", "results --over"), "elsewhere", ([{"launch": WORD, "runs": [0]}],)),
    (("show of a run",), "config", ANY_MAP),
    (("report",), "launches/*/config", ANY_MAP),
    (("report",), "launches/*/packages", ({WORD: WORD},)),
    *((("resume",), f"new_layouts/*/{field}", ANY_MAP) for field in ("parallel", "resources")),
    *((("rerun",), field, ([WORD],)) for field in ("differences", "layouts", "jobs")),
    (("render",), "jobs", ([WORD],)),
    (("sandbox",), "", (SANDBOX, SANDBOX | {"options": None, "nodes": [NODE | {"state": None}]})),
)
"""Of documents that are put together while a verb runs: values that few runs show, and closed lists."""


def taught(builder: Callable[..., Any]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield what a builder makes of each member of all enums and unions, and the enums' words."""
    least = Sampler(whole=False, plain=FREE).call(builder)
    for pick in range(MOST_MEMBERS):
        for whole in (True, False):
            sampler = Sampler(whole=whole, plain=FREE, pick=pick)
            try:
                document, words = sampler.call(builder), frozenset(sampler.words)
                yield document, words
                if isinstance(document, dict) and document.keys() > least.keys():
                    yield {key: document[key] for key in least}, words
            except (TypeError, ValueError, KeyError):  # not every member of a union fits the others
                assert pick, builder


def learn_at(schema: Schema | None, path: Sequence[str], document: Any, words: frozenset[str]) -> Schema:
    """Widen the part of a schema at a path: names of fields, and `*` for the items of a list."""
    if not path:
        return learn(schema, document, words=words)
    inner, known = path[1:], schema or {}
    if path[0] == "*":
        return {"type": "array", **known, "items": learn_at(known.get("items"), inner, document, words)}
    properties = dict(known.get("properties", {}))
    properties[path[0]] = learn_at(properties.get(path[0]), inner, document, words)
    return {"type": "object", **known, "properties": properties}


def learn_part(known: Schema | None, document: Any, words: frozenset[str]) -> Schema:
    """Widen a schema by the fields of a document to which other code adds more."""
    wider = learn(known, document, words=words)
    asked = {} if known is None or "required" not in known else {"required": known["required"]}
    return {name: one for name, one in wider.items() if name != "required"} | asked


def test_schemas_take_what_few_runs_show() -> None:
    """A field that is null in all tests may be a text, and the words of a closed list are known."""
    schemas = read_schemas()
    for verbs, path, samples in TOLD:
        for name in verbs:
            verb, _, form = name.partition(" ")
            form = form or LINES.get(verb, "")
            for value in samples:
                words = frozenset(samples) - {WORD} if isinstance(value, str) else frozenset()
                known = schemas.setdefault(verb, {}).get(form)
                wider = learn_at(known, path.split("/") if path else (), to_plain(value), words)
                if UPDATE:
                    schemas[verb][form] = wider
                assert wider == schemas[verb].get(form), (name, path, value)
    if UPDATE:
        write_schemas(schemas)


@pytest.mark.parametrize("name", SCHEMA_BUILDERS)
def test_schemas_take_all_that_builders_make(name: str) -> None:
    """Each member of each enum, each member of a union, what is missing: the shipped schema has it."""
    schemas = read_schemas()
    for place in PLACES.get(name, (name,)):
        head, *path = place.split("/")
        verb, _, form = head.partition(" ")
        for document, words in taught(SCHEMA_BUILDERS[name]):
            form_here = form or (form_of(verb, document) if not path else "")
            known = schemas.setdefault(verb, {}).get(form_here)
            wider = (
                learn_part(known, document, words)
                if name in PARTS
                else learn_at(known, path, document, words)
            )
            if UPDATE:
                schemas[verb][form_here] = wider
            assert wider == schemas[verb].get(form_here), document
    if UPDATE:
        write_schemas(schemas)


def test_documents_are_those_of_the_golden_file(desk: Desk, shell: Shell) -> None:
    """A program that read yesterday's finds the same names in the same order, and the same forms.

    Of verbs that look, the types of values; of builders that take values, the values too.
    """
    troubled_launch(desk)
    swept_launch(desk, 8, steps=20)
    found = {
        f"{name}, {'all' if whole else 'least'}": Sampler(whole=whole).call(builder)
        for name, builder in BUILDERS.items()
        for whole in (True, False)
    }
    said = {words: desk.say(*words, "--json") for words in LOOKED_AT}
    said |= {words: shell(*words, "--json") for words in WRITTEN}
    for words, answer in said.items():
        assert answer.out, (words, answer.err)
        found["hpckit " + " ".join(words)] = shape(json.loads(answer.out))
    text = json.dumps(found, indent=1) + "\n"
    if UPDATE:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
