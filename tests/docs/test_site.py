"""The site, opened from a disk: it asks no server for anything, and its search finds pages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk
from report_launches import swept_launch

import hpckit

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site of this version, beside the pages of an older one."""
    folder: Path = tmp_path_factory.mktemp("sites")
    (folder / "0.0.9").mkdir()
    (folder / "0.0.9" / "index.html").write_text("old")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([str(ROOT / "scripts" / "versioned-docs"), str(folder)], env=environ, check=True)
    return folder / hpckit.__version__


def test_versions_stand_side_by_side(site: Path) -> None:
    """The list links each version, the newest first; each page names its own; older pages stay."""
    listed = re.findall('href="(.*?)/index.html"', (site.parent / "index.html").read_text())
    assert listed == [hpckit.__version__, "0.0.9"]
    assert (site.parent / "0.0.9" / "index.html").read_text() == "old"
    assert f"hpckit {hpckit.__version__}" in (site / "index.html").read_text(encoding="utf-8")


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    """No script, style, picture or frame of any page has an address of its own."""
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+href=\"?https?://")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    for picture in (site / "pictures").glob("*.svg"):
        assert "url(" not in picture.read_text(encoding="utf-8").replace("url(#", "")


@pytest.mark.skipif(BROWSER is None or importlib.util.find_spec("playwright") is None, reason="no browser")
@pytest.mark.timeout(180)
def test_search_works_from_a_disk(site: Path) -> None:
    """A word that is typed on one page leads to others, without a network."""
    playwrights: Any = importlib.import_module("playwright.sync_api")
    with playwrights.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = started.new_context(offline=True).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "guides" / "chaos.html").as_uri(), timeout=60_000)
        box = page.locator("input.md-search__input")
        box.click()
        box.press_sequentially("pending", delay=50)
        found = page.locator(".md-search-result__item a[href*='guides/faq.html']")
        found.first.wait_for(timeout=60_000)
        assert [url for url in asked if not url.startswith("file:")] == []
        started.close()


def test_pictures_can_be_made_again(desk: Desk) -> None:
    """`scripts/pictures.py` draws a recorded launch and a table, with all that they show."""
    names = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))
    launch = swept_launch(desk, 3)
    drawing = names["top"](launch, names["context_of"](desk.folder))
    table = names["terminal"]("index  lr\n0      0.1\n", "results")
    for text, words in ((drawing, ("runs", "Filter", "Quit")), (table, ("index", "0.1"))):
        assert text.startswith("<svg")
        assert "https://cdnjs" not in text
        assert [word for word in words if word not in text] == []


def test_start_page_links_every_guide_and_reference() -> None:
    """README promises it; pages of verbs and decisions have an index of their own."""
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)", (docs / "index.md").read_text(encoding="utf-8")))
    pages = {
        str(page.relative_to(docs))
        for folder in ("guides", "reference", "explanations")
        for page in (docs / folder).glob("*.md")
    }
    assert sorted(pages - linked) == []
