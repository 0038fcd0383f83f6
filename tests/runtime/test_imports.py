"""Imports that a process keeps: the collector leaves them alone, and then works as before."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEGIN = """
import gc, weakref
from hpckit.runtime.fork_server.server import pause_gc_for_imports

class Ring:
    def __init__(self): self.me = self
"""


def _run(code: str) -> str:
    """Run code in a Python of its own: what is frozen stays so until a process ends."""
    done = subprocess.run([sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, check=True)
    return done.stdout


def test_kept_imports_are_never_looked_through() -> None:
    """What was imported is not among the objects of later collections."""
    code = """
with pause_gc_for_imports():
    import decimal
print(any(one is decimal for one in gc.get_objects()), gc.get_freeze_count() > 1000)
"""
    assert _run(code) == "False True\n"


def test_garbage_of_imports_is_collected() -> None:
    """Only what lives is kept: a cycle that the imported code dropped is gone."""
    code = """
with pause_gc_for_imports():
    ring = Ring()
    seen = weakref.ref(ring)
    del ring
print(seen())
"""
    assert _run(code) == "None\n"


def test_later_garbage_is_collected_as_before() -> None:
    """After the imports the thresholds are the former ones, and cycles are found."""
    code = """
before = gc.get_threshold()
with pause_gc_for_imports():
    pass
ring = Ring()
seen = weakref.ref(ring)
del ring
gc.collect()
print(seen(), gc.get_threshold() == before, gc.isenabled())
"""
    assert _run(code) == "None True True\n"


def test_failed_import_leaves_the_collector_as_it_was() -> None:
    """An error passes through, and the thresholds are the former ones."""
    code = """
before = gc.get_threshold()
try:
    with pause_gc_for_imports():
        raise ImportError
except ImportError:
    print(gc.get_threshold() == before, gc.get_freeze_count())
"""
    assert _run(code) == "True 0\n"


@pytest.mark.parametrize(
    ("told", "holds"),
    [
        ("gc.disable()", "not gc.isenabled()"),
        ("gc.set_threshold(0)", "gc.get_threshold()[0] == 0"),
        ("gc.set_threshold(5000, 20)", "gc.get_threshold()[:2] == (5000, 20)"),
    ],
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_what_code_tells_the_collector_holds(told: str, holds: str, when: str) -> None:
    """A user's module that tunes the collector at its import is not overruled."""
    first, second = (told, "pass") if when == "before" else ("pass", told)
    code = f"""
{first}
with pause_gc_for_imports():
    {second}
print({holds})
"""
    assert _run(code) == "True\n"
