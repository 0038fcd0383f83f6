"""docs/reference/cli has a page for each verb, with its options and the fields of its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from verb_pages import TABLE

from hpckit.cli.main import VERBS, build_verb_parser
from hpckit.model.failure import Cause
from hpckit.model.goodput import TimeParts
from hpckit.model.states import RunState
from hpckit.operations.new_settings import MAY_CHANGE
from hpckit.report.results import ACCOUNT_COLUMNS
from hpckit.values import field_names

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DOCUMENTS: Mapping[str, Mapping[str, Any]] = json.loads(
    (ROOT / "tests" / "golden" / "json_documents.json").read_text()
)
FAILURE = ("cli/status.md", "run-folder.md")
"""Where the fields of a failure are, and those of the collective in it."""
PAGES: Mapping[str, tuple[str, ...]] = {
    "bench": ("cli/bench.md",),
    "check": ("cli/check.md",),
    "checkpoint": ("cli/checkpoint.md", "cli/status.md"),
    "clean": ("cli/clean.md",),
    "diff": ("cli/diff.md", "cli/index.md"),
    "doctor": ("cli/doctor.md",),
    "doctor --env": ("cli/doctor.md",),
    "findings of a run": ("goodput.md", "cli/status.md"),
    "grow": ("cli/grow.md",),
    "ls": ("cli/ls.md", "cli/index.md", "cli/status.md"),
    "nodes": ("cli/nodes.md",),
    "plan": ("cli/plan.md", "cli/status.md"),
    "plan that searches": ("cli/plan.md", "cli/status.md"),
    "profile": ("cli/profile.md",),
    "results": ("cli/results.md", "goodput.md", "cli/status.md"),
    "results --over": ("cli/results.md",),
    "rm": ("cli/rm.md",),
    "run of status": (*FAILURE, "goodput.md"),
    "show": ("cli/show.md", "cli/index.md", *FAILURE),
    "skipped runs": ("cli/resume.md",),
    "stacks": ("cli/stacks.md",),
    "waiting": ("cli/status.md",),
}
"""Where the fields of a document are explained: on the page of its verb, and on those it links."""
NOT_IN_DETAIL = {"bench": {"shape", "links", "search"}, "doctor --env": {"here", "node", "asked"}}
"""Fields of which the pages say what they are, but not each field in them."""


def text(page: str) -> str:
    """Return a page of the reference."""
    return (REFERENCE / page).read_text(encoding="utf-8")


def fields(value: Any, *, but: set[str]) -> Iterator[str]:
    """Yield the names of all fields in a document."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item, but=but)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in but:
                yield from fields(inner, but=but)


def test_each_verb_has_a_page() -> None:
    """No page is without a verb, and no verb without a page; scripts/verb_pages.py lists them."""
    there = {path.stem for path in (REFERENCE / "cli").glob("*.md")}
    assert there == {*VERBS, "index"}
    assert TABLE in text("cli/index.md")


def options(verb: str) -> set[str]:
    """Return the long and short options of a verb, as they are typed, but for --help."""
    actions = build_verb_parser(verb)._actions  # noqa: SLF001  # argparse has no other way
    return {word for action in actions for word in action.option_strings} - {"-h", "--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_page_names_every_option_of_its_verb(verb: str) -> None:
    """A new option is explained."""
    page = text(f"cli/{verb}.md")
    assert page.startswith(f"# hpckit {verb}\n")
    known = options(verb)
    assert [word for word in known if not re.search(rf"(?<![\w-]){word}(?![\w-])", page)] == []


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_every_option_that_its_page_lists(verb: str) -> None:
    """The command line is an interface: what a page lists stays, or leaves the page, too."""
    heads = re.findall(r"^(?:- |\| )(`-[^:|]*)[:|]", text(f"cli/{verb}.md"), re.MULTILINE)
    listed = {word for head in heads for word in re.findall(r"`(--?[a-z][\w-]*)", head)}
    assert listed - options(verb) == set()


@pytest.mark.parametrize("name", PAGES)
def test_page_explains_every_field_of_its_json(name: str) -> None:
    """Each field of what `--json` prints, in all that it may print, stands on the page."""
    pages = "\n".join(map(text, PAGES[name]))
    found = fields(DOCUMENTS[f"{name}, all"], but=NOT_IN_DETAIL.get(name, set()))
    named = {name for name in found if name != "text"}  # what stands for names of the user's
    assert [name for name in named if f"`{name}`" not in pages and f'"{name}"' not in pages] == []


def test_every_document_has_a_page() -> None:
    """A new document gets one here."""
    built = {name.removesuffix(", all") for name in DOCUMENTS if name.endswith(", all")}
    assert built == set(PAGES)


@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTS if name.startswith("hpckit ") and DOCUMENTS[name]]
)
def test_page_explains_what_its_verb_prints_at_the_top(name: str) -> None:
    """Also of verbs whose documents are put together while they run, such as launch and report."""
    page = text(f"cli/{name.split()[1]}.md")
    top = DOCUMENTS[name]
    assert [field for field in top if f"`{field}`" not in page and f'"{field}"' not in page] == []


def test_page_of_status_explains_every_state() -> None:
    """docs/reference/cli/status.md has each state that a run can be in, and no other."""
    table = text("cli/status.md").partition("| state | meaning |\n|---|---|\n")[2]
    told = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(told) == sorted(RunState)


def test_page_of_resume_names_what_may_change() -> None:
    """docs/reference/cli/resume.md has each key of `resources` with which a run may continue."""
    page = text("cli/resume.md")
    assert [key for key in MAY_CHANGE if f"`{key}`" not in page] == []


def test_page_of_goodput_names_what_is_planned() -> None:
    """docs/reference/goodput.md has each field of the account, and the causes that are planned."""
    page = text("goodput.md")
    parts = [f"{name}_s" for name in field_names(TimeParts)]
    assert [name for name in (*parts, *ACCOUNT_COLUMNS) if f"`{name}`" not in page] == []
    (line,) = (line for line in re.split(r"\n(?=- )", page) if "are planned" in line)
    assert sorted(re.findall("`(.+?)`", line)) == sorted(one for one in Cause if one.planned)
