"""Guesses what was meant by an option that a verb does not have. Pure."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Sequence

_ALIKE = 0.75
"""`--wiat` is that similar to `--wait`; `--epochs` and `--detach` are not."""


def option_hint(
    unknown: str, words: Sequence[str], options: Collection[str], *, verb: str, composes: bool
) -> str:
    """Return what to write instead of the `unknown` option among these words.

    `composes` is whether the verb takes overrides, and a command after `--`.
    """
    name, given, value = unknown.partition("=")
    opposite = name.replace("--no-", "--", 1)
    if opposite != name and opposite in options:
        return f"leave {opposite} out: it is off by default"
    near = difflib.get_close_matches(name, options, n=1, cutoff=_ALIKE)
    if near:
        return f"did you mean {near[0]}?"
    if not composes or not name.startswith("--"):
        return f"`{verb} --help` lists the options"
    if not given:
        value = _behind(unknown, words)
    key = name.lstrip("-").replace("-", "_")
    own = shlex.join([name, value]) if value else name
    return (
        f"write what is configured as a word, without dashes: {key}={value or '...'}\n"
        f"options of your own script belong behind --: {verb} -- python train.py {own}"
    )


def _behind(option: str, words: Sequence[str]) -> str:
    """Return the word after an option, if it can be its value."""
    place = list(words).index(option) + 1 if option in words else len(words)
    following = words[place] if place < len(words) else ""
    return "" if following.startswith("-") or "=" in following else following
