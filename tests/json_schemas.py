"""What documents teach about their schema: hpckit/cli/schemas.json is learned from what verbs print.

`learn(schema, value)` widens a schema until it takes a value. A schema that a document leaves as it is
describes all of it; so tests that read `--json` check it, too (tests/cli_world.py), and with
`HPCKIT_UPDATE_GOLDEN=1` they widen the file instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "hpckit" / "cli" / "schemas.json"
Schema = dict[str, Any]

WORD = "a word"
"""A sample of a text of the user's: as the only key of an object it says that users choose the keys."""
ANYTHING = "anything"
"""A sample of a value that may be anything."""

FORMS: Mapping[str, Mapping[str, str]] = {
    "doctor": {"here": "--env"},
    "logs": {"line": "--follow or --tail: each line"},
    "nodes": {"forgotten": "--forget"},
    "plan": {"found": "--search", "-parameters": "--power"},
    "results": {"over": "--over"},
    "show": {"signature": "of a run"},
    "status": {"share": "--watch: each line"},
}
"""Of verbs that print documents of several forms: a field that tells the form, and what asks for it.

With a dash in front, the field is missing.
"""
LINES = {"chaos": "each line"}
_MOST_CHARACTERS = 300_000
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")
_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def learn(schema: Schema | None, value: Any, *, words: frozenset[str] = frozenset()) -> Schema:
    """Return the narrowest schema that takes `value` and all that `schema` takes.

    `words` are the values of enums: a text that is always one of them becomes an enum.
    """
    if value == ANYTHING or schema == {}:
        return {}
    known = dict(schema or {})
    types = known.pop("type", [])
    types = {*types} if isinstance(types, list) else {types}
    if isinstance(value, dict):
        kind = "object"
        known = _learn_object(known, value, words)
    elif isinstance(value, list):
        kind = "array"
        for item in value:
            known["items"] = learn(known.get("items"), item, words=words)
    elif value is None:
        kind = "null"
    else:
        kind = _TYPES[type(value)]
        if kind == "string":
            known = _learn_text(known, value, words, new=kind not in types)
    types |= {kind}
    if "number" in types:
        types -= {"integer"}
    if "enum" in known:
        known["enum"] = [word for word in known["enum"] if word is not None] + [None] * ("null" in types)
    if types - {"string", "null"}:
        known.pop("enum", None)
    return {"type": min(types) if len(types) == 1 else sorted(types), **known}


def _learn_text(known: Schema, value: str, words: frozenset[str], *, new: bool) -> Schema:
    rest = {name: inner for name, inner in known.items() if name not in {"enum", "format"}}
    if _TIME.fullmatch(value) and (new or "format" in known):
        return {**rest, "format": "date-time"}
    if value in words and (new or "enum" in known):
        return {**rest, "enum": sorted({*known.get("enum", ()), value} - {None})}
    return known if value in known.get("enum", ()) else rest


def _learn_object(known: Schema, value: dict[str, Any], words: frozenset[str]) -> Schema:
    if WORD in value or "additionalProperties" in known:
        inner = known.get("additionalProperties")
        for item in value.values():
            inner = learn(inner, item, words=words)
        return {
            **{name: one for name, one in known.items() if name not in {"properties", "required"}},
            "additionalProperties": inner,
        }
    properties = dict(known.get("properties", {}))
    required = [name for name in known.get("required", value) if name in value]
    for name, item in value.items():
        properties[name] = learn(properties.get(name), item, words=words)
    return {**known, "properties": properties, "required": required}


def form_of(verb: str, document: Any, given: Sequence[str] = ()) -> str:
    """Return which form of the verb's documents this is; empty for the usual one."""
    if "--config" in given:
        return "--config"
    known = FORMS.get(verb, {}).items()
    told = (when for field, when in known if (field.strip("-") in document) is not field.startswith("-"))
    return next(told, LINES.get(verb, ""))


def documents_in(verb: str, given: Sequence[str], text: str) -> Iterator[tuple[str, Any]]:
    """Yield the documents that a verb has printed, each with its form."""
    try:
        found = [json.loads(text)] if text else []
    except ValueError:  # an object a line
        found = [json.loads(line) for line in text.splitlines()]
    for document in found:
        yield form_of(verb, document, given), document


def read_schemas() -> dict[str, dict[str, Schema]]:
    """Return the schemas that are shipped, by verb and form."""
    found: dict[str, dict[str, Schema]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write_schemas(schemas: Mapping[str, Any]) -> None:
    """Write the schemas that are shipped."""
    ordered = {verb: dict(sorted(forms.items())) for verb, forms in sorted(schemas.items())}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def check_printed(verb: str, given: Sequence[str], text: str) -> None:
    """Check what a verb has printed with `--json` beside its schema; or widen the schema by it."""
    if not text.strip() or len(text) > _MOST_CHARACTERS:
        return
    with FILE.open() as locked:
        update = bool(os.environ.get("HPCKIT_UPDATE_GOLDEN"))
        if update:  # by several workers of pytest at once
            fcntl.flock(locked, fcntl.LOCK_EX)
        schemas = read_schemas()
        for form, document in documents_in(verb, given, text):
            known = schemas.get(verb, {}).get(form)
            wider = {} if form == "--config" else learn(known, document)
            if update and wider != known:
                schemas.setdefault(verb, {})[form] = wider
                write_schemas(schemas)
            assert update or wider == known, (
                f"schemas.json lacks this (HPCKIT_UPDATE_GOLDEN=1 widens it): {given}"
            )
