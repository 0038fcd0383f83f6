"""The whole report as one HTML file that asks nothing of any other. Pure but for its own style.

Scripts run by their hash alone. What users named is text: in the page it is escaped, and the charts
get it as JSON in which no `<` is left.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from hpckit.model.plain import without_nan
from hpckit.report.document.model import ReportDocument
from hpckit.report.document.words import written_words
from hpckit.report.html.curves import curves_section
from hpckit.report.html.elements import Html, element, joined, paragraph
from hpckit.report.html.hardware import gpus_section, ranks_section
from hpckit.report.html.outcome import outcome_section, verdicts_section
from hpckit.report.html.provenance import provenance_section
from hpckit.report.html.section import Section
from hpckit.report.html.sweep import sweep_section
from hpckit.report.html.timeline import timeline_section

GENERATOR = "hpckit report"
"""What a file has to say at its beginning to be replaced without being named."""

_SECTIONS = (
    verdicts_section,
    outcome_section,
    timeline_section,
    curves_section,
    sweep_section,
    gpus_section,
    ranks_section,
    provenance_section,
)


def page_chunks(
    document: ReportDocument, plotly: str, *, refresh_s: float | None = None
) -> Iterator[str]:
    """Yield the page, piece by piece; `plotly` is the text of plotly.js."""
    scripts = [_script_text(plotly), _script_text(_own("page.js"))]
    sections = [make(document) for make in _SECTIONS]
    yield "<!DOCTYPE html>\n"
    yield '<html lang="en">\n'
    yield element("head", *_head(document, scripts, refresh_s)) + "\n<body>\n"
    yield _top(document, sections)
    yield element("main", *(one.html(place) for place, one in enumerate(sections, 1))) + "\n"
    yield element("footer", _foot())
    yield '\n<script type="application/json" id="charts">'
    yield safe_json([chart.plain() for one in sections for chart in one.charts])
    yield "</script>\n"
    for script in scripts:
        yield "<script>"
        yield script
        yield "</script>\n"
    yield "</body>\n</html>\n"


def safe_json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in; NaN and infinite numbers are null."""
    text = json.dumps(without_nan(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: these scripts, styles and pictures of the page itself."""
    hashes = " ".join(f"'sha256-{_hash(one)}'" for one in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _script_text(text: str) -> str:
    """Return a script that a browser reads as it is hashed, and that does not end its element."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _head(
    document: ReportDocument, scripts: Sequence[str], refresh_s: float | None
) -> Iterator[Html]:
    yield element("meta", charset="utf-8")
    yield element("meta", name="generator", content=GENERATOR)
    yield element("meta", http_equiv="Content-Security-Policy", content=policy(scripts))
    yield element("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield element("meta", name="color-scheme", content="light dark")
    yield element("meta", name="referrer", content="no-referrer")
    if refresh_s is not None:
        yield element("meta", http_equiv="refresh", content=f"{refresh_s:g}")
    yield element("title", f"{document.title}: report")
    yield Html(f"<style>{_own('page.css')}</style>")


def _top(document: ReportDocument, sections: Sequence[Section]) -> Html:
    links = (element("a", one.title, href=f"#{one.id}") for one in sections)
    return element(
        "header",
        element("h1", document.title),
        paragraph(f"W{written_words(document)[1:]}.", "remark"),
        element("nav", *links, aria_label="sections"),
    )


def _foot() -> Html:
    return joined(
        [
            paragraph(
                "This file loads nothing and sends nothing. It names hosts, folders, users and "
                "overrides: look before you pass it on.",
                "remark",
            )
        ]
    )
