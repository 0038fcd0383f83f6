"""Promises about the user's function: what of it is known without running it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.runtime.rank.user_function import calls_method, load_user_function

DIRECT = "def main(config, run):\n    for step in run.steps(3): pass\n"
HELPER = "def loop(run):\n    for step in run.steps(3): pass\ndef main(config, run): loop(run)\n"
METHOD = """
class Trainer:
    def fit(self, run):
        return [step for step in run.steps(3)]
def main(config, run): Trainer().fit(run)
"""
BESIDE = "def train(config, run): run.steps(3)\ndef main(config, run): run.log(x=1)\n"
PARTIAL = """
from functools import partial
def work(number, config, run): run.steps(number)
main = partial(work, 3)
"""


def load(tmp_path: Path, text: str) -> Callable[..., Any]:
    """Return `main` of a module with this text."""
    (tmp_path / "task.py").write_text(text)
    spec = importlib.util.spec_from_file_location("task_of_a_test", tmp_path / "task.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", [DIRECT, PARTIAL], ids=["direct", "partial"])
def test_step_loop_is_seen_in_the_function(tmp_path: Path, text: str) -> None:
    """A function that calls `steps` is known to, however it is wrapped."""
    assert calls_method(load(tmp_path, text), "steps", tmp_path)


@pytest.mark.parametrize("text", [HELPER, METHOD], ids=["helper", "method"])
def test_step_loop_is_seen_in_what_the_function_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Its own helpers and classes are looked through, too."""
    main = load(tmp_path, text)
    monkeypatch.setitem(__import__("sys").modules, "task_of_a_test", _module(main))
    assert calls_method(main, "steps", tmp_path)


def _module(function: Any) -> Any:
    module = type(importlib.util)("task_of_a_test")
    vars(module).update(function.__globals__)
    return module


def test_step_loop_of_another_function_does_not_count(tmp_path: Path) -> None:
    """A module may hold a training and a preparation; only what is called is judged."""
    assert not calls_method(load(tmp_path, BESIDE), "steps", tmp_path)


@pytest.mark.parametrize("parameters", ["", "config", "config, run, more", "*, config, run"])
def test_function_of_other_parameters_is_refused(
    parameters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that cannot take configuration and run is named with what it takes."""
    module = f"arity_{abs(hash(parameters))}"
    (tmp_path / f"{module}.py").write_text(f"def main({parameters}): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot be called with a configuration and a run") as no:
        load_user_function(f"{module}:main")
    assert f"main({parameters})" in no.value.message
    assert no.value.hint.endswith("def main(config, run)")


@pytest.mark.parametrize("parameters", ["config, run", "*all", "cfg, run, seed=0", "a, /, b"])
def test_function_of_two_parameters_is_taken(
    parameters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their names are, and with more that have defaults."""
    module = f"arity_{abs(hash(parameters))}"
    (tmp_path / f"{module}.py").write_text(f"def main({parameters}): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_user_function(f"{module}:main").__name__ == "main"
