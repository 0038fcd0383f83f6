"""Promises of the HTML report, read as a browser parses it, without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from cli_world import Desk, Writer
from report_launches import ATTACK, gathered, hostile_launch, swept_launch, troubled_launch

from hpckit.features.reporting.document import ReportDocument
from hpckit.features.reporting.page import dump_html_safe_json, load_page_templates, render_page_chunks
from hpckit.features.reporting.page_parts import MOST_ROWS, Figure, build_table

SECTIONS = (*("verdicts", "outcome", "timeline", "curves", "sweep", "gpus", "ranks", "provenance"),)
PLOTLY = "window.Plotly = {}; // </script> in a comment\r\n"


@dataclass
class Page(HTMLParser):
    """A parsed page: its tags with attributes, the text of each section, the scripts."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    _section: str = ""
    _inside: str = ""
    _label: str = ""

    def __post_init__(self) -> None:
        """Begin."""
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        given = dict(attrs)
        self.tags.append((tag, given))
        self._inside = tag
        if tag == "section":
            self._section = given["id"] or ""
        if tag == "script":
            self.scripts.append((given, ""))
        if given.get("role") == "region":
            self._label = given["aria-label"] or ""
            self.tables[self._label] = []
        if tag == "tr":
            self.tables[self._label].append([])
        if tag in {"td", "th"}:
            self.tables[self._label][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Leave a tag."""
        self._inside = ""
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        """Note text."""
        if self._inside == "script":
            given, text = self.scripts[-1]
            self.scripts[-1] = (given, text + data)
        elif self._inside != "style":
            self.text[self._section] = self.text.get(self._section, "") + data
            if self._inside in {"td", "th", "span"} and self.tables.get(self._label):
                cells = self.tables[self._label][-1]
                if cells:
                    cells[-1] += data

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The charts that the page's script gets."""
        (found,) = (text for given, text in self.scripts if given.get("id") == "charts")
        charts: list[dict[str, Any]] = json.loads(found)
        return charts

    def chart(self, name: str) -> dict[str, Any]:
        """Return one chart."""
        (found,) = (chart for chart in self.charts if chart["id"] == name)
        return found

    @property
    def policy(self) -> str:
        """The content security policy."""
        (found,) = (
            given["content"]
            for tag, given in self.tags
            if given.get("http-equiv") == "Content-Security-Policy"
        )
        return found or ""


def parsed(document: ReportDocument, **options: Any) -> Page:
    """Return the page of a document, with a stand-in for plotly."""
    page = Page()
    page.feed("".join(render_page_chunks(document, PLOTLY, **options)))
    page.close()
    return page


def test_page_has_all_sections_in_order(desk: Desk) -> None:
    """Eight sections, each with a heading and something below it."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    assert tuple(given["id"] for tag, given in page.tags if tag == "section") == SECTIONS
    assert all(len(page.text[name]) > 30 for name in SECTIONS)


def test_page_runs_its_two_scripts_alone(desk: Desk) -> None:
    """The policy has the hash of each script as a browser reads it, and allows nothing else."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    scripts = [text for given, text in page.scripts if given.get("type") != "application/json"]
    assert len(scripts) == 2
    assert "\r" not in scripts[0]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    wanted = " ".join(f"'sha256-{one}'" for one in hashes)
    assert page.policy == (
        f"default-src 'none'; script-src {wanted}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def test_page_refers_to_nothing_outside(desk: Desk) -> None:
    """No element names a place to load from; links stay on the page."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    for tag, given in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form", "base"}
        assert not {"src", "srcset", "action", "background"} & set(given)
        assert (given.get("href") or "#").startswith("#")
        assert not [name for name in given if name.startswith("on")]


def test_page_shows_hostile_names_as_text(desk: Desk) -> None:
    """What users named is there to read, makes no element, and ends no script."""
    page = parsed(gathered(desk, hostile_launch(desk)))
    assert ATTACK in page.text["outcome"]
    assert ATTACK in page.text["curves"]
    assert ATTACK in page.text["provenance"]
    assert "\\x1b[2J" in page.text["outcome"]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(page.scripts) == 3
    data = next(text for given, text in page.scripts if given.get("id") == "charts")
    assert "<" not in data
    titles = [
        chart["layout"]["yaxis"]["title"]["text"]
        for chart in page.charts
        if chart["id"].startswith("chart-curve")
    ]
    assert any(title.startswith("loss&lt;img src") for title in titles)
    assert not [title for title in titles if "<" in title]


def test_page_timeline_adds_up_to_the_account(desk: Desk) -> None:
    """The lengths of the bars are the wall time of the run, in milliseconds."""
    document = gathered(desk, troubled_launch(desk))
    bars = [one for one in parsed(document).chart("chart-timeline")["data"] if one["type"] == "bar"]
    account = document.rows[0].goodput
    assert account is not None
    whole = sum(length for bar in bars for length in bar["x"])
    assert whole == pytest.approx(account.parts.wall.total_seconds() * 1000)
    lost = next(bar for bar in bars if bar["name"] == "repeated steps")
    assert sum(lost["x"]) == pytest.approx(account.parts.lost.total_seconds() * 1000)


def test_page_shows_what_steps_went_to_in_shares_that_add_up(desk: Desk) -> None:
    """Own work in the table lacks waiting for data, which has a column of its own."""
    text = "".join(render_page_chunks(gathered(desk, troubled_launch(desk)), PLOTLY))
    ranks = text[text.index('id="ranks"') :]
    head, *rows = re.findall(r"<tr>(.*?)</tr>", ranks[: ranks.index("</table>")])
    assert "other work of its own" in head
    for row in rows:
        shares = [float(one) for one in re.findall(r">([0-9.]+) %<", row)]
        assert sum(shares[:4]) == pytest.approx(100, abs=0.3), row
    assert len(rows) == 4


def test_page_lists_the_latest_interruptions(desk: Desk) -> None:
    """When, where and why, the newest first; causes alone are counted for all of them."""
    rows = parsed(gathered(desk, troubled_launch(desk))).tables["latest interruptions"]
    assert rows[0] == ["when", "run", "attempt", "round", "rank", "node", "step", "then", "what"]
    assert [row[1:6] for row in rows[1:]] == [
        [".0", "2", "0", "3", "n2"],
        [".0", "1", "1", "", "n2"],
        [".0", "1", "0", "1", "n1"],
    ]
    assert [row[6:] for row in rows[2:]] == [
        ["799", "end", "n2 is lost"],
        ["419", "new round", "CUDA out of memory"],
    ]
    assert rows[1][0].startswith("2026-01-01 01:19:20")


def test_page_shows_what_the_code_timed(desk: Desk) -> None:
    """The phases of `run.timed`, the longest first."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    assert page.tables["timed phases"][1:] == [
        [".0", "backward", "0.6", "30.0 %"],
        [".0", "forward", "0.5", "25.0 %"],
    ]


def test_page_offers_resume_where_something_is_left(desk: Desk) -> None:
    """A launch that completed has nothing to resume."""
    left = parsed(gathered(desk, troubled_launch(desk))).text["provenance"]
    assert "hpckit resume" in left
    launch = desk.freeze("done", minute=1)
    writer = Writer(launch=launch)
    writer.start()
    writer.complete()
    done = parsed(gathered(desk, launch)).text["provenance"]
    assert ("hpckit rerun" in done, "hpckit resume" in done) == (True, False)


def test_page_gives_a_constant_curve_a_range_of_its_size(desk: Desk) -> None:
    """A learning rate of 0.001 is not drawn between -1 and 1."""
    writer = Writer(launch=desk.freeze("flat"))
    writer.start()
    for step in range(3):
        writer.metrics(step, lr=0.001, loss=float(step))
    charts = {
        chart["layout"]["yaxis"]["title"]["text"]: chart["layout"]["yaxis"]
        for chart in parsed(gathered(desk, writer.launch)).charts
        if chart["id"].startswith("chart-curve")
    }
    assert charts["lr"]["range"] == pytest.approx([0.0005, 0.0015])
    assert "range" not in charts["loss"]


def test_page_counts_steps_and_shows_times_in_one_way(desk: Desk) -> None:
    """The table of results has what the table of runs has: `1200`, not the step's number 1199."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    head, (*_, steps, time) = page.tables["results of the runs"]
    assert head[-2:] == ["steps", "time"]
    assert (steps, time) == ("1200", "21:50")


def test_page_draws_undone_steps_faint_and_the_others_solid(desk: Desk) -> None:
    """The undone trace is dotted and lighter, and comes before the solid one."""
    page = parsed(gathered(desk, troubled_launch(desk)))
    faint, solid = page.chart("chart-curve-0")["data"]
    assert (faint["line"]["dash"], faint["opacity"] < 1) == ("dot", True)
    assert "dash" not in solid["line"]
    assert max(solid["x"]) == 1199
    assert {300, 419, 600, 799} <= set(faint["x"])


def test_page_offers_times_for_the_traces_that_have_them(desk: Desk) -> None:
    """As many places as values; what was undone has none in productive time, a band in neither."""
    (chart, *_) = (chart for chart in parsed(gathered(desk, troubled_launch(desk))).charts if "axes" in chart)
    undone, live = chart["data"]
    for name, title in (("wall", "wall time (min)"), ("productive", "productive time (min)")):
        axis = chart["axes"][name]
        assert axis["title"] == title
        of_undone, of_live = axis["x"]
        assert len(of_live) == len(live["x"])
        assert of_live == sorted(of_live)
        assert (of_undone is None) == (name == "productive")
    assert len(chart["axes"]["wall"]["x"][0]) == len(undone["x"])


def test_page_of_many_runs_has_places_for_every_trace(desk: Desk) -> None:
    """A band comes first, and is one of steps."""
    charts = [chart for chart in parsed(gathered(desk, swept_launch(desk, 30))).charts if "axes" in chart]
    assert charts
    for chart in charts:
        for axis in chart["axes"].values():
            assert len(axis["x"]) == len(chart["data"])
            assert axis["x"][:3] == [None] * 3
            assert all(len(x) == len(one["x"]) for x, one in zip(axis["x"], chart["data"], strict=True) if x)


def test_page_of_a_sweep_has_a_line_for_each_run(desk: Desk) -> None:
    """Parallel coordinates have every run once; the table has the best run first."""
    page = parsed(gathered(desk, swept_launch(desk, 30, steps=5)))
    chart = page.chart("chart-sweep")
    assert chart["layout"]["xaxis"]["ticktext"] == ["lr", "seed", "opt", "acc"]
    assert sum(trace["x"].count(0) for trace in chart["data"]) == 30
    rows = page.tables["results of the runs"]
    assert rows[0][:4] == ["index", "lr", "seed", "opt"]
    assert rows[1][:4] == ["0", "0.1", "0", "adam"]
    assert "Best run: " in page.text["outcome"]


def test_page_of_one_run_says_why_parts_are_missing(desk: Desk) -> None:
    """A launch without metrics and telemetry has a line in place of each empty section."""
    page = parsed(gathered(desk, desk.freeze("new")))
    for name, words in {
        "timeline": "No time line: no run was submitted or has begun.",
        "curves": "No curves:",
        "sweep": "No sweep: the report has one run.",
        "gpus": "No GPUs:",
        "ranks": "No step times:",
    }.items():
        assert words in page.text[name]
    assert page.charts == []


def test_page_names_verdicts_and_how_to_run_again(desk: Desk) -> None:
    """Numbers, consequences and remedies need no script; neither does the way on."""
    launch = troubled_launch(desk)
    page = parsed(gathered(desk, launch))
    for words in ("input bound (high)", "straggler (medium)", "Raise num_workers", "28 % longer"):
        assert words in page.text["verdicts"]
    assert "loss = model(batch).mean()" in page.text["outcome"]
    assert f"hpckit rerun {launch.id} --exact" in page.text["provenance"]
    assert page.tables["use of each GPU"][1][1:4] == ["n1", "GPU 0", "NVIDIA H100 80GB HBM3"]


def test_page_refreshes_itself_only_if_asked(desk: Desk) -> None:
    """`--refresh` is a meta element; without it there is none."""
    document = gathered(desk, desk.freeze("new"))
    assert not [given for _, given in parsed(document).tags if given.get("http-equiv") == "refresh"]
    (found,) = (
        given["content"]
        for _, given in parsed(document, refresh_s=60.0).tags
        if given.get("http-equiv") == "refresh"
    )
    assert found == "60"


def test_page_of_very_many_runs_cuts_its_tables(desk: Desk) -> None:
    """Two thousand rows are shown, and how many are not."""
    document = gathered(desk, desk.freeze("new", sweep=[("a=1",), ("a=2",)]))
    many = replace(document, rows=document.rows * 1100)
    page = parsed(many)
    assert len(page.tables["runs"]) == MOST_ROWS + 1
    assert "200 more rows not shown." in page.text["outcome"]


def test_json_in_the_page_is_json_without_what_html_obeys() -> None:
    """NaN and infinite numbers are null, and no sign is left that could end the element."""
    text = dump_html_safe_json({"a": [float("nan"), float("inf"), 1], "b": "</script><!--&"})
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {"a": [None, None, 1], "b": "</script><!--&"}


def test_templates_escape_text_and_attributes() -> None:
    """Whatever no template wrote is text, whether it stands in an element or in an attribute."""
    template = load_page_templates().from_string('<p title="{{ one }}">{{ one }}</p>')
    shown = "&lt;b&gt;&#34;\\x1b\\u202e"
    assert template.render(one='<b>"\x1b\u202e') == f'<p title="{shown}">{shown}</p>'


def test_table_leaves_empty_columns_out_and_sorts_by_numbers() -> None:
    """A figure shows its text and sorts by its number."""
    page = Page()
    rows = [("x", None, Figure("1 min", 60.0)), ("y", "", Figure("2 s", 2.0))]
    parts = load_page_templates().get_template("parts.html.j2").make_module()
    page.feed(parts.table(build_table(("a", "b", "c"), rows), "t"))  # type: ignore[attr-defined]
    assert page.tables["t"] == [["a", "c"], ["x", "1 min"], ["y", "2 s"]]
    assert [given.get("data-sort") for tag, given in page.tags if tag == "td"] == [None, "60", None, "2"]
