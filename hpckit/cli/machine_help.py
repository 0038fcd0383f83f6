"""`--help --json`: all verbs, or one, for programs and agents: words, options, effects, output schema.

Words come from the parsers, schemas from `schemas.json`; only the effects of verbs are told here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.cli.main import VERB_GROUPS, VERBS, build_verb_parser, import_verb_module
from hpckit.context import Context
from hpckit.version import __version__

EXIT_CODES = {
    0: "fine",
    1: "a run failed, something went wrong midway, output cannot be written; `init --diff` found differences",
    2: "usage or configuration: it cannot be done as asked; `check` found errors, `rm` left a launch",
    3: "the scheduler refused, or does not answer; `sandbox status`: not all is up",
    130: "interrupted by Ctrl-C; runs continue",
    141: "the reader of standard output has left",
}

EFFECTS = {
    "reads": "reads launch folders, or the configuration",
    "asks_slurm": "runs programs of Slurm that change nothing",
    "runs_code": "imports or runs the user's code on this machine",
    "writes_launch": "creates or changes launch folders",
    "writes_files": "writes files outside launch folders",
    "starts": "submits Slurm jobs, or starts processes that outlive the command",
    "stops": "ends runs, or cancels Slurm jobs",
    "asks_runs": "asks a running run for something; the run continues",
    "changes_runs": "disturbs or changes a running run",
    "notifies": "sends notices about ended runs that could not be sent before",
    "deletes": "deletes files of launches",
    "confirms": "asks before it acts; without a terminal or with --json it refuses and names the option "
    "that agrees",
    "waits": "returns when something else has ended, maybe after days",
    "terminal": "needs a terminal",
    "root": "needs root, and changes this machine",
}
"""What a verb can do beyond printing. Caches, which can be deleted, are no effect."""

_START = "reads asks_slurm runs_code writes_launch starts confirms"
VERB_EFFECTS: Mapping[str, str] = {
    "launch": f"{_START}; --wait: waits; --follow: waits; --foreground: waits",
    "render": "reads asks_slurm writes_launch",
    "check": "reads asks_slurm runs_code",
    "plan": "reads runs_code",
    "resume": "reads asks_slurm writes_launch starts; --wait: waits",
    "rerun": f"{_START}; --wait: waits",
    "watch": "reads asks_slurm writes_launch starts waits",
    "ls": "reads asks_slurm",
    "status": "reads asks_slurm notifies; --watch: waits",
    "top": "reads asks_slurm terminal waits",
    "logs": "reads; --follow: asks_slurm waits",
    "show": "reads asks_slurm",
    "diff": "reads",
    "results": "reads asks_slurm",
    "report": "reads asks_slurm writes_files",
    "plot": "reads asks_slurm writes_files",
    "checkpoint": "reads; --to: writes_files",
    "export": "reads asks_slurm writes_files; --follow: waits",
    "nodes": "reads asks_slurm; --forget: writes_launch",
    "stacks": "reads asks_slurm asks_runs",
    "bench": "reads asks_slurm writes_launch starts waits; --to: writes_files",
    "profile": "reads asks_slurm changes_runs waits",
    "cancel": "reads asks_slurm writes_launch stops",
    "grow": "reads asks_slurm writes_launch starts changes_runs",
    "shrink": "reads asks_slurm changes_runs",
    "shell": "reads asks_slurm terminal waits",
    "chaos": "reads asks_slurm writes_launch changes_runs; --mtbf: waits",
    "clean": "reads asks_slurm deletes confirms",
    "rm": "reads asks_slurm deletes confirms",
    "doctor": "reads asks_slurm; --env: writes_launch starts waits; --adopt: writes_launch; --cancel: stops",
    "init": "reads asks_slurm writes_files; --probe: starts waits",
    "image": "reads asks_slurm writes_files deletes confirms; --on: starts waits",
    "sandbox": "root starts stops writes_files",
    "completion": "",
}
"""By verb: what it does, and after each `;` what it does in addition with an option."""

_ONLY_READS = ("--dry-run", "--cfg", "--info", "--markdown", "--diff")
"""With one of these options a verb prints what it would do, or has read, and changes nothing."""

_REPEATS_NOTHING = frozenset({"rerun", "bench", "chaos", "grow", "shell", "profile"})
"""A second call does it again, or fails; calling another verb twice leaves what one call does."""

_KINDS: Mapping[Any, str] = {int: "integer", float: "number", None: "text"}
_FOLDER = Path(__file__).parent
_SCHEMAS = _FOLDER / "schemas.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def print_machine_help(words: Sequence[str], context: Context) -> int:
    """Print the help of the verb among these words, or of hpckit, as JSON; raises UsageError."""
    verb = next((word for word in words if not word.startswith("-") and word != "help"), None)
    if verb is not None:
        import_verb_module(verb)  # of an unknown verb, says which is meant
        found = {"version": __version__, **describe_verb(verb), "output_schema": read_output_schema(verb)}
        context.say_json(found)
        return 0
    context.say_json(
        {
            "version": __version__,
            "guide": str(find_automation_guide()),
            "exit_codes": {str(code): meaning for code, meaning in EXIT_CODES.items()},
            "effects": EFFECTS,
            "verbs": [describe_verb(verb) for verb in VERBS],
        }
    )
    return 0


def find_automation_guide() -> Path:
    """Return the page on using hpckit from a program: in the package, or in its checkout."""
    package = _FOLDER.parent
    inside = package / "automation.md"
    return inside if inside.is_file() else package.parent / "docs" / "guides" / "automation.md"


def read_output_schema(verb: str) -> Any:
    """Return the JSON schema of what a verb prints with `--json`; None if it prints no JSON."""
    forms = json.loads(_SCHEMAS.read_text(encoding="utf-8")).get(verb)
    if forms is None:
        return None
    told = [{"description": when, **schema} if when else schema for when, schema in forms.items()]
    return {"$schema": _DIALECT, "title": f"hpckit {verb} --json"} | (
        told[0] if len(told) == 1 else {"anyOf": told}
    )


def describe_verb(verb: str) -> dict[str, Any]:
    """Return a verb's words, options and effects as JSON values; raises UsageError if there is none."""
    parser, module = build_verb_parser(verb), import_verb_module(verb)
    always, *with_options = VERB_EFFECTS.get(verb, "").split(";")
    more = dict(part.strip().split(": ") for part in with_options)
    actions = list(_list_actions(parser))
    names = {name for action in actions for name in action.option_strings}
    return {
        "verb": verb,
        "group": next((name for name, group in VERB_GROUPS.items() if verb in group), None),
        "line": VERBS.get(verb),
        "usage": " ".join(parser.format_usage().removeprefix("usage: ").split()),
        "arguments": [_describe_action(action) for action in actions if not action.option_strings],
        "options": [_describe_action(action) for action in actions if action.option_strings],
        "exclusive": [
            [max(action.option_strings, key=len) for action in group._group_actions]  # noqa: SLF001  # as above
            for group in parser._mutually_exclusive_groups  # noqa: SLF001
        ],
        "takes_command": getattr(module, "TAKES_COMMAND", False),
        "takes_overrides": any(action.dest == "overrides" for action in actions),
        "actions": _describe_subparsers(parser),
        "effects": always.split(),
        "effects_with": {option: words.split() for option, words in more.items()},
        "only_reads_with": [option for option in _ONLY_READS if option in names],
        "safe_to_repeat": verb not in _REPEATS_NOTHING,
        "json": "--json" in names or verb == "sandbox",
        "examples": getattr(module, "EPILOG", None),
    }


def _list_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    actions = parser._actions  # noqa: SLF001  # argparse has no other way
    return [action for action in actions if action.dest != "help"]


def _describe_subparsers(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the options of each action of a verb that has some, such as `sandbox up`."""
    return {
        name: [_describe_action(inner) for inner in _list_actions(one)]
        for action in _list_actions(parser)
        if isinstance(action.choices, Mapping)
        for name, one in action.choices.items()
    }


def _describe_action(action: argparse.Action) -> dict[str, Any]:
    takes, least = action.nargs != 0, action.nargs in {None, "+", "A..."}
    positional = not action.option_strings
    flag = not positional and not takes
    default = None if flag or action.default is argparse.SUPPRESS else action.default
    return {
        "names": list(action.option_strings) or [action.dest],
        "value": action.metavar if takes else None,
        "takes_value": takes if not takes or least else "optional",
        "type": "flag" if flag else _KINDS.get(action.type, "text"),
        "choices": None if action.choices is None else list(action.choices),
        "default": default if isinstance(default, int | float | str) else None,
        "required": action.required if not positional else least,
        "several": action.nargs in {"*", "+", "A..."} or type(action).__name__ == "_AppendAction",
        "meaning": action.help,
    }
