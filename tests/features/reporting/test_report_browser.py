"""The report in a real browser, without a network: it draws, asks for nothing, and stays calm.

Needs playwright and a Chromium on the PATH; hpckit's own tests download no browser.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk
from report_launches import hostile_launch, swept_launch, troubled_launch
from tiers import thorough

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = [name for name in ("playwright", "plotly") if importlib.util.find_spec(name) is None] + (
    [] if BROWSER else ["chromium"]
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(120),
]
READY = "document.body.dataset.ready"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser of this machine."""
    playwrights = importlib.import_module("playwright.sync_api")
    with playwrights.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


class Reader:
    """Opens a file offline, and notes what the page says and asks for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        """Open it, and wait until its charts are drawn if scripts may run."""
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_context(offline=True, **options).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.locator("body[data-ready]").wait_for(timeout=60_000)

    def _refuse(self, dialog: Any) -> None:
        self.said.append("dialog")
        dialog.dismiss()

    def check(self, file: Path) -> None:
        """Assert that it is drawn, silent, and alone."""
        assert self.said == []
        assert self.asked == [file.as_uri()]
        assert self.page.evaluate(READY) == "yes"

    def width(self) -> int:
        """Return how far the page can be scrolled sideways."""
        found: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return found


def report(desk: Desk) -> Path:
    """Write the report of the latest launch."""
    desk.say("report", "-o", "report.html")
    return desk.folder / "report.html"


def wait_until(done: Callable[[], bool], page: Any) -> None:
    """Wait for something on the page; in Python, as the page's policy forbids to evaluate text."""
    for _ in range(100):
        if done():
            return
        page.wait_for_timeout(100)
    pytest.fail("it did not become true within ten seconds")


@pytest.mark.parametrize("width", [400, pytest.param(1280, marks=thorough)])
@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(troubled_launch, marks=thorough),
        hostile_launch,
        pytest.param(lambda desk: swept_launch(desk, 30), marks=thorough),
    ],
)
def test_browser_draws_all_charts_offline(desk: Desk, browser: Any, launch: Any, width: int) -> None:
    """No console message, no request but the file, no sideways scroll, a drawing in each chart."""
    launch(desk)
    file = report(desk)
    reader = Reader(browser, file, viewport={"width": width, "height": 900})
    reader.check(file)
    assert reader.width() == 0
    charts = reader.page.locator(".chart")
    assert charts.count() >= 3
    assert charts.locator("svg.main-svg").count() >= charts.count()
    assert "owned" not in reader.page.title()
    assert reader.page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "dark"),
        pytest.param(1280, "light", marks=thorough),
        pytest.param(400, "light", marks=thorough),
        pytest.param(1280, "dark", marks=thorough),
    ],
)
def test_browser_shows_curves_over_time_at_a_press(desk: Desk, browser: Any, width: int, scheme: str) -> None:
    """Buttons change the axis of all curves at once, under the page's own policy."""
    troubled_launch(desk)
    file = report(desk)
    options: dict[str, Any] = {"viewport": {"width": width, "height": 900}}
    reader = Reader(browser, file, color_scheme=scheme, **options)
    page = reader.page
    title = page.locator("#chart-curve-0 .xtitle")
    lines = page.locator("#chart-curve-0 path.js-line")
    assert (title.text_content(), lines.count()) == ("step", 3)
    for words, shown in (
        ("wall time", ("wall time (min)", 3)),
        ("productive time", ("productive time (min)", 1)),
        ("steps", ("step", 3)),
    ):
        page.locator("#curve-axis").get_by_role("button", name=words, exact=True).click()
        wait_until(lambda: (title.text_content(), lines.count()) == shown, page)  # noqa: B023
        assert page.locator("#curve-axis button[aria-pressed=true]").text_content() == words
        assert reader.width() == 0
    reader.check(file)


@thorough
def test_browser_draws_the_undone_steps_and_the_account(desk: Desk, browser: Any) -> None:
    """The dotted line, the bars of each part, and the heat map are really there."""
    troubled_launch(desk)
    page = Reader(browser, report(desk), viewport={"width": 1280, "height": 900}).page
    assert page.locator("#chart-curve-0 path.js-line").count() == 3
    assert page.locator("#chart-timeline .bars .point path").count() > 20
    for name in ("busy", "temperature", "slowed"):
        assert page.locator(f"#chart-gpu-{name} .hm image").count() == 1
    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert buttons
    assert not [title for title in buttons if title and ("hare" in title or "loud" in title)]


@thorough
def test_browser_sorts_a_table_by_its_heads(desk: Desk, browser: Any) -> None:
    """By number where cells are numbers, and the other way with the second press."""
    swept_launch(desk, 30)
    page = Reader(browser, report(desk)).page
    table = page.locator("#sweep table")
    head = table.locator("th button", has_text="seed")
    head.click()
    seeds = table.locator("tbody td:nth-child(3)")
    assert seeds.all_inner_texts() == [str(seed) for seed in range(30)]
    head.click()
    assert seeds.first.inner_text() == "29"
    assert table.locator("th[aria-sort=descending]").count() == 1


@thorough
def test_browser_follows_dark_and_print(desk: Desk, browser: Any) -> None:
    """Paper and ink change with the reader's choice, also in charts; print is dark on white."""
    troubled_launch(desk)
    page = Reader(browser, report(desk), color_scheme="dark").page
    ink = "getComputedStyle(document.querySelector('#chart-curve-0 .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(21, 24, 27)", "rgb(228, 231, 234)")
    page.emulate_media(color_scheme="light")
    wait_until(lambda: page.evaluate(ink) == "rgb(28, 32, 36)", page)
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")


def test_browser_without_scripts_shows_verdicts_and_tables(desk: Desk, browser: Any) -> None:
    """What is said in words and numbers needs no script, and a line says what is missing."""
    troubled_launch(desk)
    page = Reader(browser, report(desk), java_script_enabled=False).page
    assert page.get_by_text("Ranks waited 35 % of each step for data").is_visible()
    assert page.get_by_text("A chart, for which JavaScript").first.is_visible()
    assert page.locator("#timeline table").is_visible()
    assert page.locator("#provenance pre").first.is_visible()


@thorough
def test_browser_loads_a_page_again_that_refreshes(desk: Desk, browser: Any) -> None:
    """The policy lets the page load itself, and nothing else is asked for."""
    desk.freeze("new")
    desk.say("report", "-o", "report.html", "--refresh", "1")
    file = desk.folder / "report.html"
    reader = Reader(browser, file)
    with reader.page.expect_navigation(timeout=20_000):
        pass
    assert set(reader.asked) == {file.as_uri()}
    assert len(reader.asked) > 1
    assert reader.said == []
