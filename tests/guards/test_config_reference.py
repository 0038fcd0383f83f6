"""docs/reference/configuration.md has every key of the schema, as the schema says it."""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

from hpckit.config.schema import list_typed_sections
from hpckit.model.launch import LaunchConfig
from hpckit.planning.checks.slips import SLURM_ONLY

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "configuration.md"


@pytest.fixture(scope="module")
def reference() -> Callable[[], str]:
    """Return the function that makes the page."""
    names = runpy.run_path(str(ROOT / "scripts" / "config_reference.py"))
    return cast("Callable[[], str]", names["reference"])


def keys() -> set[str]:
    """Return every key that hpckit reads, dotted; sections are not keys."""
    sections = list_typed_sections()
    root = {field.name for field in dataclasses.fields(LaunchConfig)} - set(sections)
    return root | {key for section, kind in sections.items() for key in keys_of(kind, section)}


def keys_of(kind: Any, section: str) -> Iterator[str]:
    """Yield the keys of a section, and of those within it."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        key = f"{section}.{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from keys_of(hints[field.name], key)
        else:
            yield key


def test_page_is_what_the_generator_makes(reference: Callable[[], str]) -> None:
    """Whoever changes a key, its docstring or a shipped option makes the page again."""
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python scripts/config_reference.py"


def test_page_has_a_row_for_every_key() -> None:
    """The generator leaves out no key of the schema; `stages` has keys of its own."""
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    missing = {key for key in keys() if not any(row.startswith(f"| `{key}` |") for row in rows)}
    assert missing == {"stages"}


def test_keys_for_slurm_alone_exist() -> None:
    """A key that is renamed is renamed in that list, too."""
    assert set(SLURM_ONLY) <= keys()
    assert len(SLURM_ONLY) == len(set(SLURM_ONLY))


def test_page_of_gpus_is_what_its_generator_makes() -> None:
    """Whoever changes the catalogue makes its page again."""
    names = runpy.run_path(str(ROOT / "scripts" / "gpu_reference.py"))
    page = (ROOT / "docs" / "reference" / "gpus.md").read_text(encoding="utf-8")
    assert page == names["page"](), "run: python scripts/gpu_reference.py"
