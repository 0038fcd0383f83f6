"""Patterns are compiled at their first use, and each of them is one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hpckit
from hpckit.patterns import lazy_pattern

PACKAGE = Path(hpckit.__file__).parent


def test_every_pattern_of_the_package_compiles() -> None:
    """As they are compiled late, a mistake in one would show on a user's screen."""
    for path in PACKAGE.rglob("*.py"):
        if "lazy_pattern(" in path.read_text():
            import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("hpckit.")]
    patterns = [found for values in modules for found in _lazy_patterns([*values.values()])]
    assert len(patterns) > 150
    assert all(isinstance(found.pattern, str | bytes) for found in patterns)


def _lazy_patterns(value: Any) -> Iterator[Any]:
    if type(value).__name__ == "_LazyPattern":
        yield value
    for inner in value if type(value) in {list, tuple} else ():
        yield from _lazy_patterns(inner)


def test_a_lazy_pattern_is_used_like_a_compiled_one() -> None:
    """Text and bytes, with flags, by every method; what is no attribute stays one."""
    words = lazy_pattern(r"(?P<key>\w+)=", re.ASCII)
    assert words.sub("x", "lr=1 é=2") == "x1 é=2"
    assert lazy_pattern(rb"\d+").findall(b"4 of 16") == [b"4", b"16"]
    assert words.groupindex == {"key": 1}
    with pytest.raises(AttributeError):
        _ = words.no_such_method  # type: ignore[attr-defined]


def test_importing_a_module_compiles_none() -> None:
    """The first use does."""
    code = (
        "import re, sys; done = []; real = re.compile\n"
        "re.compile = lambda *given: done.append(given) or real(*given)\n"
        "import hpckit.planning.secrecy as secrecy; before = len(done)\n"
        "secrecy.mask_command_line(['token=hf_abcdefgh']); print(before, len(done) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
