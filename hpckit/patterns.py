"""Regular expressions that are compiled when they are first used, and not when imported.

Compiling the 220 patterns of the package takes 40 ms; a verb uses a few of them.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    """What `re.compile` returns, once one of its attributes is looked up."""

    def __init__(self, text: Any, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(re.compile(*self._source), name)
        setattr(self, name, value)  # the next time this is not called
        return value


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    r"""Return a pattern like `re.compile`, which is compiled at its first use.

    A mistake in it shows then, too: a guard compiles them all.

    >>> lazy_pattern(r"\d+").findall("4 of 16")
    ['4', '16']
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
