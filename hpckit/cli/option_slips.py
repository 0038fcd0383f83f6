"""Guesses what was meant by an option that a verb does not have. Pure."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Sequence

_SHORTEST = 3
_ALIKE = 0.75
"""`--wiat` is that similar to `--wait`; `--epochs` and `--detach` are not."""


_FILLERS = ("num", "n", "number", "of", "count", "total", "size", "len", "length", "per", "s")
"""Words of an option that say no more than that it is a number."""


def option_hint(
    unknown: str,
    words: Sequence[str],
    options: Collection[str],
    *,
    verb: str,
    composes: bool,
    takes_command: bool = True,
) -> str:
    """Return what to write instead of the `unknown` option among these words.

    `composes` is whether the verb takes overrides, `takes_command` whether a command after `--`,
    whose options are not the verb's.
    """
    name, given, value = unknown.partition("=")
    opposite = name.replace("--no-", "--", 1)
    if opposite != name and opposite in options:
        return f"leave {opposite} out: it is off by default"
    near = difflib.get_close_matches(name, options, n=1, cutoff=_ALIKE)
    if near:
        return f"did you mean {near[0]}?"
    if not takes_command and (alike := _same_stem(name, options)):
        return f"did you mean {' or '.join(alike)}?"
    if not composes or not takes_command or not name.startswith("--"):
        return f"`{verb} --help` lists the options"
    if not given:
        value = _behind(unknown, words)
    key = name.lstrip("-").replace("-", "_")
    own = shlex.join([name, value]) if value else name
    return (
        f"write what is configured as a word, without dashes: {key}={value or '...'}\n"
        f"options of your own script belong behind --: {verb} -- python train.py {own}"
    )


def _same_stem(name: str, options: Collection[str]) -> list[str]:
    """Return options with the word that matters in a name: `--gpus` for `--gpu-count`."""
    stems = [one for one in name.lower().strip("-").split("-") if one not in _FILLERS]
    stem = "".join(stems[:1]).removeprefix("n")
    if len(stem) < _SHORTEST:
        return []
    counts = len(stems) < len(name.strip("-").split("-"))
    long = sorted(one for one in options if one.startswith("--"))
    if counts and f"--{stem.removesuffix('s')}s" in long:
        return [f"--{stem.removesuffix('s')}s"]
    parts = {one: one.strip("-").split("-") for one in long}
    return [one for one in long if any(part.startswith(stem) for part in parts[one])][:3]


def _behind(option: str, words: Sequence[str]) -> str:
    """Return the word after an option, if it can be its value."""
    place = list(words).index(option) + 1 if option in words else len(words)
    following = words[place] if place < len(words) else ""
    return "" if following.startswith("-") or "=" in following else following
