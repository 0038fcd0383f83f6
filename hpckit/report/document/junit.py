"""A report as JUnit XML, as continuous integration reads it: a suite per launch. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hpckit.model.counted import counted
from hpckit.model.ids import split_run_id
from hpckit.model.states import RunState
from hpckit.report.document.model import ReportDocument
from hpckit.report.escape import escaped
from hpckit.report.failures import failure_words
from hpckit.report.rows import RunRow

MARK = "<!-- a report of hpckit -->"
"""Stands in each file, by which it is known as one that may be replaced."""

_NOT_XML = re.compile("[\ufffe\uffff]")
_WELL = frozenset({RunState.completed})
_OPEN = frozenset({RunState.pending, RunState.running})


def junit_text(document: ReportDocument) -> str:
    """Return the XML: a test case for each run, failed if its run ended but not well."""
    suites = Element("testsuites", name=_text(document.title))
    for launch in document.launches:
        head = launch.about.head
        rows = [row for row in document.rows if split_run_id(row.run)[0] == head.id]
        cases = [_case(row) for row in rows]
        suite = SubElement(
            suites,
            "testsuite",
            name=_text(head.id),
            tests=str(len(rows)),
            failures=str(sum(one.find("failure") is not None for one in cases)),
            errors="0",
            skipped=str(sum(one.find("skipped") is not None for one in cases)),
            time=_time(rows),
            timestamp=head.created_at.isoformat(timespec="seconds"),
        )
        suite.extend(cases)
    indent(suites)
    declared = f'<?xml version="1.0" encoding="UTF-8"?>\n{MARK}\n'
    return f"{declared}{tostring(suites, encoding='unicode')}\n"


def _case(row: RunRow) -> Element:
    words = " ".join(row.overrides)
    case = Element(
        "testcase",
        classname=_text(split_run_id(row.run)[0]),
        name=_text(f"{row.run} {words}".strip()),
        time=_time([row]),
    )
    if row.state in _OPEN:
        SubElement(case, "skipped", message=f"the run is {row.state}")
    elif row.state not in _WELL:
        _fail(case, row)
    return case


def _fail(case: Element, row: RunRow) -> None:
    failure = row.failure
    if failure is None:
        why = row.blocked or row.note or f"the run is {row.state}"
        SubElement(case, "failure", type=row.state.value, message=_text(why))
        return
    found = SubElement(
        case, "failure", type=failure.cause.value, message=_text(failure.message.strip())
    )
    found.text = _text("\n".join(filter(None, (failure_words(failure), failure.traceback))))
    if row.attempt > 1:
        SubElement(case, "system-out").text = f"ended after {counted(row.attempt, 'attempt')}"


def _time(rows: Sequence[RunRow]) -> str:
    """Return the seconds that runs spent on their nodes, over all attempts."""
    known = [row.goodput.parts.running for row in rows if row.goodput is not None]
    return f"{sum(one.total_seconds() for one in known):.3f}"


def _text(words: str) -> str:
    """Return a text that XML can hold."""
    return _NOT_XML.sub("?", escaped(words))
