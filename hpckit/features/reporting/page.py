"""The whole report as one HTML file that asks nothing of any other. Pure but for its templates.

Scripts run by their hash alone. What users named is text: in the page it is escaped, and the charts
get it as JSON in which no `<` is left.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from hpckit.features.reporting.document import ReportDocument
from hpckit.features.reporting.page_curves import curves_section, timeline_section
from hpckit.features.reporting.page_hardware import gpus_section, ranks_section
from hpckit.features.reporting.page_outcome import (
    outcome_section,
    provenance_section,
    verdicts_section,
)
from hpckit.features.reporting.page_sweep import sweep_section
from hpckit.features.reporting.words import written_words
from hpckit.model.counted import counted
from hpckit.model.plain import without_nan
from hpckit.report.escape import escaped

if TYPE_CHECKING:
    import jinja2

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
    templates = page_templates()
    scripts = [_script_text(plotly), _script_text(_own("page.js"))]
    sections = [make(document) for make in _SECTIONS]
    charts = [
        {
            "id": chart.id,
            "height": chart.height,
            **json.loads(
                templates.get_template(f"charts/{chart.template}.json.j2").render(chart.values)
            ),
        }
        for section in sections
        for chart in section.charts
    ]
    yield from templates.get_template("page.html.j2").generate(
        title=document.title,
        written=written_words(document)[1:],
        generator=GENERATOR,
        policy=policy(scripts),
        refresh_s=refresh_s,
        style=_own("page.css"),
        sections=sections,
        charts=safe_json(charts),
        scripts=scripts,
    )


def page_templates() -> jinja2.Environment:
    """Return the templates: what no template wrote is shown as text, control characters too."""
    # Imported here: help, and a report in another form, have nothing to render.
    module = importlib.import_module("jinja2")
    templates: jinja2.Environment = module.Environment(
        loader=module.PackageLoader("hpckit.features.reporting"),
        autoescape=True,
        undefined=module.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else escaped(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["counted"] = counted
    return templates


def safe_json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in; NaN and infinite numbers are null."""
    text = json.dumps(without_nan(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: these scripts, styles and pictures of the page itself."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _script_text(text: str) -> str:
    """Return a script that a browser reads as it is hashed, and that does not end its element."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _own(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
