"""docs/explanations/reliability.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanations" / "reliability.md"


def test_every_test_that_the_page_names_exists() -> None:
    """A promise is held by a file of tests, at the place the page says."""
    named = set(re.findall(r"`(?:tests/)?(\w[\w/]*/test_\w+\.py)`", PAGE.read_text()))
    assert len(named) > 5
    assert {name for name in named if not (ROOT / "tests" / name).exists()} == set()
