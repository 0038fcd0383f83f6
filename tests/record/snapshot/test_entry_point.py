"""Promises of finding an entry point without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpckit.record.snapshot.entry_point import (
    explain_uncallable_entry_point,
    find_module,
    may_define_name,
    suggest_similar_names,
)


def test_module_is_found_in_packages_and_never_imported(tmp_path: Path) -> None:
    """A module whose import would fail is found all the same, with its packages."""
    (tmp_path / "mine" / "inner").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "mine" / "inner" / "train.py").write_text("raise RuntimeError\n")
    found = find_module("mine.inner.train", [tmp_path], installed=False)
    assert found is not None
    assert found.file == tmp_path / "mine" / "inner" / "train.py"
    assert "mine" not in sys.modules


def test_module_is_missing_where_it_is_not(tmp_path: Path) -> None:
    """Neither an unknown name nor a name below a module that is no package is found."""
    (tmp_path / "train.py").write_text("")
    for name in ("tarin", "train.inner", "train_"):
        assert find_module(name, [tmp_path], installed=True) is None


def test_module_that_is_installed_is_found_only_where_that_counts() -> None:
    """What this Python has installed is found, unless the nodes run another one."""
    found = find_module("hpckit.experiments.digits", [], installed=True)
    assert found is not None
    assert found.has_readable_source
    assert find_module("hpckit.experiments.digits", [], installed=False) is None
    assert find_module("sys", [], installed=True) is not None


@pytest.mark.parametrize(
    "source",
    [
        "def main(run): ...",
        "async def main(run): ...",
        "class main: ...",
        "main = print",
        "main: object = print",
        "from other import main",
        "from other import run as main",
        "import main",
        "from other import *",
        "def __getattr__(name): ...",
        "try:\n    from fast import main\nexcept ImportError:\n    main = None",
        "if True:\n    pass\nelse:\n    def main(run): ...",
        "with open('x') as main: ...",
        "other = main = print",
        "globals()['main'] = print",
    ],
)
def test_names_are_seen_however_they_are_bound(source: str) -> None:
    """Definitions, assignments and imports count, in blocks as well."""
    assert may_define_name(source, "main")


@pytest.mark.parametrize(
    ("source", "attribute"),
    [
        ("def mian(run): ...", "main"),
        ("def f():\n    def main(): ...", "main"),
        ("main()", "main"),
        ("class A:\n    def run(self): ...", "A.main"),
    ],
)
def test_names_that_nothing_binds_are_missed(source: str, attribute: str) -> None:
    """Neither a use nor a function inside another makes a name."""
    assert not may_define_name(source, attribute)


def test_names_that_are_meant_are_found() -> None:
    """A slip is answered with what the module has, nearest first."""
    assert suggest_similar_names("def train(config, run): ...\nimport os", "trian") == ["train"]
    assert suggest_similar_names("def train(config, run): ...", "evaluate") == []


def test_methods_are_seen_and_inherited_ones_assumed() -> None:
    """Of a class with bases nobody can know without running them."""
    assert may_define_name("class A:\n    def run(self): ...", "A.run")
    assert may_define_name("class A(B): ...", "A.run")


@pytest.mark.parametrize(
    ("source", "lazy"),
    [
        ("async def main(config, run): ...", True),
        ("def main(config, run):\n    yield 1", True),
        ("def main(config, run):\n    x = yield from ()", True),
        ("def main(config, run):\n    def inner():\n        yield 1\n    list(inner())", False),
        ("@decorated\nasync def main(config, run): ...", False),
        ("def main(config, run): ...", False),
        ("main = 1", False),
    ],
)
def test_function_that_runs_nothing_when_called_is_seen(source: str, lazy: bool) -> None:  # noqa: FBT001  # parametrized
    """Coroutine and generator functions are known without importing them."""
    slip = explain_uncallable_entry_point(source, "main")
    assert (slip is not None and "coroutine" in slip[0]) == lazy


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("def main(): ...", "main()"),
        ("def main(config): ...", "main(config)"),
        ("def main(a, b, c): ...", "main(a, b, c)"),
        ("def main(config, run, *, lr): ...", "main(config, run, *, lr)"),
        ("def main(*, config, run): ...", "main(*, config, run)"),
        ("def main(**kw): ...", "main(**kw)"),
        ("def main(config, run): ...", None),
        ("def main(config, run, epochs=3): ...", None),
        ("def main(config, run=None, *, epochs=3): ...", None),
        ("def main(*args): ...", None),
        ("def main(config, *rest, **kw): ...", None),
        ("def main(config, run, /): ...", None),
        ("@wrapped\ndef main(): ...", None),
        ("def main(): ...\nmain = wrap(main)", None),
        ("if x:\n    def main(): ...\nelse:\n    def main(a, b): ...", None),
        ("class main:\n    def __init__(self): ...", None),
        ("main = lambda: 0", None),
        ("from x import main", None),
    ],
)
def test_function_that_cannot_take_both_is_shown(source: str, shown: str | None) -> None:
    """Only a plain `def` is certain: what decorators and other bindings make of it is not seen."""
    slip = explain_uncallable_entry_point(source, "main")
    if shown is None:
        assert slip is None
        return
    assert slip is not None
    assert f"is {shown}, which cannot be called" in slip[0]
    assert "def main(config, run)" in slip[1]


@pytest.mark.parametrize(
    "decorator",
    ["@hydra.main(version_base=None, config_path='conf')", "@main(config_name='x')", "@hydra.main()"],
)
def test_hydra_application_is_no_entry_point(decorator: str) -> None:
    """It would compose once more, and takes one argument at most."""
    slip = explain_uncallable_entry_point(f"{decorator}\ndef main(cfg): ...", "main")
    assert slip is not None
    assert "remove the decorator" in slip[1]
