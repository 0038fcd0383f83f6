"""Slurm's syntax for generic resources, such as `gpu:a100:4(S:0-1),mps:400`. Pure."""

from __future__ import annotations

import re

_ITEM = re.compile(r"([A-Za-z][\w.-]*)(?::([A-Za-z_][\w.-]*|\d+[A-Za-z_][\w.-]*))?(?:[:=](\d+))?")
_NOTHING = frozenset({"", "(null)", "none", "n/a"})


def read_gres(text: str) -> dict[str, int]:
    """Return the count of each resource: `gpu:a100:4(S:0-1),gpu:v100:2` has 6 `gpu`."""
    found: dict[str, int] = {}
    if text.strip().lower() in _NOTHING:
        return found
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        match = _ITEM.match(word.strip().removeprefix("gres/").removeprefix("gres:"))
        if match is None:
            continue
        name, kind, count = match[1], match[2], int(match[3] or 1)
        for key in (name, f"{name}:{kind}") if kind else (name,):
            found[key] = found.get(key, 0) + count
    return found
