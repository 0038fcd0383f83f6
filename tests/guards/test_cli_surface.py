"""The command line is an interface: what is there stays, and changes here on purpose only."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from hpckit.cli.main import HIDDEN_VERBS, VERBS, verb_parser

COMPOSING = {"OVERRIDE", "--multirun", "--config-dir", "--config-name", "--cfg", "--info", "--json"}
FILTERS = {"--state", "--failed", "--override"}
SURFACE = {
    "launch": COMPOSING
    | {"--dry-run", "--no-check", "--auto-resume", "--wait", "--detach", "--foreground", "--follow"}
    | {"--rerun", "--any-code", "--changed-code", "--no-model"},
    "check": COMPOSING | {"--no-model"},
    "plan": {"--model", "--gpu", "--gpus", "--parallel", "--global-batch", "--micro-batch"}
    | {"--sequence", "--vocab", "--precision", "--optimizer", "--recompute", "--attention"}
    | {"--zero", "--step-s", "--tokens", "--search", "--power", "--pue", "--price-per-gpu-hour"}
    | {"--carbon-g-per-kwh", "--power-cap-w", "--node-w-per-gpu", "--kernels", "--loss"}
    | {"OVERRIDE", "--config-dir", "--config-name", "--from", "--output-dir", "--json"},
    "render": COMPOSING,
    "doctor": {"LAUNCH|OVERRIDE", "--adopt", "--cancel", "--json", "--output-dir"}
    | {"--env", "--here", "--config-dir", "--config-name"},
    "status": {"LAUNCH|RUN", "--all", "--goodput", "--json", "--output-dir"}
    | FILTERS
    | {"--watch", "--sort", "--limit", "--fresh"},
    "cancel": {"LAUNCH|RUN", "--all", "--dry-run", "--json", "--output-dir"} | FILTERS,
    "resume": {"LAUNCH|RUN", "--cancelled", "--changed-code", "--dry-run", "--wait"}
    | {"--cause", "--runs", "--json", "--output-dir", "--no-check"}
    | FILTERS,
    "rerun": {"LAUNCH|RUN", "--exact", "--dry-run", "--no-check", "--wait", "--json"}
    | {"--cause", "--runs", "--output-dir"}
    | FILTERS,
    "watch": {"LAUNCH", "--cancelled", "--changed-code", "--json", "--output-dir"},
    "clean": {"LAUNCH|RUN", "--all", "--attempts", "--checkpoints", "--code", "--yes"}
    | FILTERS
    | {"--dry-run", "--json", "--output-dir"},
    "show": {"LAUNCH|RUN", "--config", "--fresh", "--json", "--output-dir"},
    "checkpoint": {"ACTION", "LAUNCH|RUN", "--to", "--step", "--force", "--json", "--output-dir"},
    "export": {"KIND", "LAUNCH|RUN", "--to", "--follow", "--undone", "--output-dir"},
    "report": {"LAUNCH|RUN", "--to", "--markdown", "--json", "--refresh", "--fresh"}
    | {"--output-dir"},
    "plot": {"LAUNCH|RUN", "--to", "--metric", "--x", "--smooth", "--log", "--style", "--width"}
    | {"--height", "--fresh", "--output-dir"},
    "diff": {"LAUNCH|RUN", "--code", "--fresh", "--json", "--output-dir"},
    "top": {"LAUNCH|RUN", "--once", "--output-dir"},
    "nodes": {"NODE", "--forget", "--json", "--output-dir"},
    "stacks": {"LAUNCH|RUN", "--rank", "--json", "--output-dir"},
    "profile": {"LAUNCH|RUN", "--steps", "--ranks", "--tool", "--no-wait", "--last", "--json"}
    | {"--output-dir"},
    "grow": {"LAUNCH|RUN", "--replicas", "--partition", "--qos", "--time", "--dry-run", "--json"}
    | {"--output-dir"},
    "shrink": {"LAUNCH|RUN", "--replicas", "--json", "--output-dir"},
    "shell": {"LAUNCH|RUN", "--node", "--output-dir"},
    "rm": {"LAUNCH", "--yes", "--dry-run", "--json", "--output-dir"},
    "bench": {"KIND", "OVERRIDE", "--sizes", "--ops", "--time-s", "--find-slow", "--to", "--json"}
    | {"--config-dir", "--config-name", "--output-dir"},
    "completion": {"SHELL"},
    "sandbox": {"ACTION"},
    "chaos": {"[RUN] FAULT", "--mtbf", "--faults", "--seed", "--for", "--sandbox", "--yes"}
    | {"--dry-run", "--json", "--output-dir"},
}
AT_LEAST = {
    "logs": {"LAUNCH|RUN", "--rank", "--round", "--follow", "--json", "--output-dir"},
    "results": {"--csv", "--sort", "--descending", "--limit", "--fresh", "--json", "--output-dir"}
    | {"--over"}
    | FILTERS,
    "ls": {"NAME", "--sort", "--limit", "--json", "--output-dir"} | FILTERS,
}


def words(verb: str) -> set[str]:
    """Return the long options and positionals of a verb."""
    return {
        max(action.option_strings, key=len) if action.option_strings else str(action.metavar)
        for action in verb_parser(verb)._actions  # noqa: SLF001  # argparse has no other way
        if not isinstance(action, argparse._HelpAction)  # noqa: SLF001
    }


@pytest.mark.parametrize("verb", SURFACE)
def test_surface_of_a_verb_is_exactly_as_documented(verb: str) -> None:
    """These verbs understand these words, no more and no fewer."""
    assert words(verb) == SURFACE[verb]


@pytest.mark.parametrize("verb", AT_LEAST)
def test_surface_of_a_reading_verb_holds_what_is_promised(verb: str) -> None:
    """These verbs understand at least these words."""
    assert words(verb) >= AT_LEAST[verb]


def test_surface_has_these_verbs() -> None:
    """The verbs that people type, and those only scripts do."""
    assert set(VERBS) == SURFACE.keys() | AT_LEAST.keys()
    assert set(HIDDEN_VERBS) == {
        "supervise",
        "local",
        "auto-resume",
        "supervisor-lost",
        "satellite",
        "node-facts",
    }


@pytest.mark.parametrize("verb", [*VERBS, *HIDDEN_VERBS])
def test_surface_is_explained_word_by_word(verb: str) -> None:
    """No option and no positional is without a line of help."""
    actions = verb_parser(verb)._actions  # noqa: SLF001  # argparse has no other way
    assert [action.dest for action in actions if not action.help] == []


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"sandbox", "completion"}))
def test_help_of_a_verb_has_examples_that_it_understands(verb: str) -> None:
    """Every verb shows how it is used, in words that its own parser takes."""
    lines = re.findall(r"^  (hpckit .*)$", verb_parser(verb).epilog or "", re.MULTILINE)
    assert lines
    for line in lines:
        _, first, *given = shlex.split(re.split(r"   | > ", line)[0])
        assert first == verb
        own = given[: given.index("--")] if "--" in given else given
        verb_parser(verb).parse_intermixed_args(own)
