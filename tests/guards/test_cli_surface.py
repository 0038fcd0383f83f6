"""Every word of the command line is explained, and help shows how each verb is used."""

from __future__ import annotations

import re
import shlex

import pytest

from hpckit.cli.main import HIDDEN_VERBS, VERBS, build_verb_parser


def test_scripts_find_their_verbs() -> None:
    """Scripts of launches that were frozen earlier call these; people's verbs have pages."""
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
    actions = build_verb_parser(verb)._actions  # noqa: SLF001  # argparse has no other way
    assert [action.dest for action in actions if not action.help] == []


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"sandbox", "completion"}))
def test_help_of_a_verb_has_examples_that_it_understands(verb: str) -> None:
    """Every verb shows how it is used, in words that its own parser takes."""
    lines = re.findall(r"^  (hpckit .*)$", build_verb_parser(verb).epilog or "", re.MULTILINE)
    assert lines
    for line in lines:
        _, first, *given = shlex.split(re.split(r"   | > ", line)[0])
        assert first == verb
        own = given[: given.index("--")] if "--" in given else given
        build_verb_parser(verb).parse_intermixed_args(own)
