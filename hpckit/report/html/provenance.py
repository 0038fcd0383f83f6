"""The eighth section: what ran, from which code, where, and how to run it again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hpckit.model.counted import counted
from hpckit.model.moment import local_moment
from hpckit.model.states import RunState
from hpckit.report.account import span_text
from hpckit.report.description import AttemptDescription, LaunchDescription
from hpckit.report.document.model import ReportDocument, ReportLaunch
from hpckit.report.document.words import short_name
from hpckit.report.html.elements import Cell, Figure, Html, element, joined, paragraph, table
from hpckit.report.html.section import Section, section
from hpckit.report.text import foreign_line

_SHOWN_FILES = 50


def provenance_section(document: ReportDocument) -> Section:
    """Return the facts of each launch, and the jobs and nodes of each run."""
    parts = [part for one in document.launches for part in _launch(one, document)]
    rows = [
        (
            short_name(document, row.run),
            row.job or "",
            row.attempt,
            ", ".join(row.nodes),
            " ".join(row.overrides),
        )
        for row in document.rows
    ]
    header = ("run", "Slurm job", "attempts", "nodes", "overrides")
    return section(
        "provenance",
        "Provenance",
        [*parts, element("h3", "Jobs"), table(header, rows, label="jobs")],
    )


def _launch(one: ReportLaunch, document: ReportDocument) -> Iterable[Html]:
    about = one.about
    yield element("h3", about.head.id)
    if about.head.foreign is not None:
        yield paragraph(foreign_line(about.head.foreign), "remark")
    facts = ((name, text) for name, text in _facts(about) if text)
    yield element(
        "dl", *(joined([element("dt", name), element("dd", text)]) for name, text in facts)
    )
    yield from _files(about.code.changed_files)
    if one.packages:
        names = sorted(one.packages.items(), key=lambda pair: pair[0].lower())
        yield _details(
            counted(len(names), "package"), table(("package", "version"), names, label="packages")
        )
    if about.run is not None and about.run.attempts:
        yield _details(
            counted(len(about.run.attempts), "attempt"),
            table(
                ("attempt", "Slurm job", "nodes", "rounds", "state", "exit code", "began", "time"),
                [_attempt_cells(attempt, document) for attempt in about.run.attempts],
                label="attempts",
            ),
        )
    yield paragraph("How to run it again:")
    yield element(
        "pre",
        f"hpckit rerun {one.reference}            # today's code\n"
        f"hpckit rerun {one.reference} --exact    # exactly what was frozen" + _resume(one),
    )


def _resume(one: ReportLaunch) -> str:
    """Return how to resume; nothing if all of it completed."""
    rows = one.about.rows if one.about.run is None else (one.about.run.row,)
    if all(row.state is RunState.completed for row in rows):
        return ""
    return f"\nhpckit resume {one.reference}           # continue what has not completed"


def _facts(about: LaunchDescription) -> Iterable[tuple[str, str]]:
    code, environment, run = about.code, about.environment, about.run
    changed = " with changes" if code.dirty is True else ""  # the file may say anything
    branch = f" on {code.branch}" if code.branch else ""
    driver = f", driver {environment.driver}" if environment.driver else ""
    yield "name", about.head.name
    yield "created", local_moment(about.head.created_at)
    yield "words", "hpckit " + " ".join(about.arguments)
    yield "commit", f"{code.commit}{branch}{changed}" if code.commit else "outside git"
    yield "project", code.project + ("" if code.snapshot else " (no snapshot: it ran from there)")
    yield "program", "" if run is None else run.program
    yield "signature", "" if run is None else run.signature
    yield "Slurm jobs", ", ".join(about.jobs)
    yield "resources", ", ".join(f"{name}={value}" for name, value in about.resources.items())
    yield "Python", ", ".join(filter(None, (environment.python, environment.executable)))
    yield "torch", environment.torch or ""
    yield "hpckit", environment.hpckit or ""
    yield "frozen on", f"{environment.host}{driver}" if environment.host else ""
    yield "modules", " ".join(environment.modules)
    yield "folder", about.head.folder


def _files(names: Sequence[str]) -> Iterable[Html]:
    if names:
        more = len(names) - _SHOWN_FILES
        text = "\n".join([*names[:_SHOWN_FILES], *([f"… and {more} more"] if more > 0 else [])])
        yield _details(
            f"{counted(len(names), 'file')} changed since the commit", element("pre", text)
        )


def _details(summary: str, body: Html) -> Html:
    return element("details", element("summary", summary), body)


def _attempt_cells(one: AttemptDescription, document: ReportDocument) -> Sequence[Cell]:
    took = None
    if one.started_at is not None:
        took = max((one.ended_at or document.written_at) - one.started_at, timedelta())
    return (
        one.attempt,
        one.job or "",
        ", ".join(one.nodes),
        one.rounds,
        "" if one.state is None else one.state.value,
        one.exit_code,
        "" if one.started_at is None else local_moment(one.started_at),
        Figure(
            "" if took is None else span_text(took), None if took is None else took.total_seconds()
        ),
    )
