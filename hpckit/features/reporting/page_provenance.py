"""The eighth section: what ran, from which code, where, and how to run it again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hpckit.features.reporting.document import ReportDocument, ReportLaunch
from hpckit.features.reporting.page_parts import Cell, Section, duration, table
from hpckit.features.reporting.words import short_name
from hpckit.model.moment import local_moment
from hpckit.model.states import RunState
from hpckit.report.description import AttemptDescription, LaunchDescription
from hpckit.report.text import foreign_line

_SHOWN_FILES = 50


def provenance_section(document: ReportDocument) -> Section:
    """Return the facts of each launch, and the jobs and nodes of each run."""
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
    values = {
        "launches": [_launch(one, document) for one in document.launches],
        "jobs": table(("run", "Slurm job", "attempts", "nodes", "overrides"), rows),
    }
    return Section(name="provenance", title="Provenance", values=values)


def _launch(one: ReportLaunch, document: ReportDocument) -> Mapping[str, Any]:
    about = one.about
    foreign, changed, run = about.head.foreign, about.code.changed_files, about.run
    left = len(changed) - _SHOWN_FILES
    packages = sorted(one.packages.items(), key=lambda pair: pair[0].lower())
    attempts = () if run is None else run.attempts
    rows = about.rows if run is None else (run.row,)
    return {
        "id": about.head.id,
        "foreign": None if foreign is None else foreign_line(foreign),
        "facts": _facts(about),
        "changed": changed,
        "changed_text": "\n".join(changed[:_SHOWN_FILES])
        + (f"\n… and {left} more" if left > 0 else ""),
        "packages": table(("package", "version"), packages),
        "attempts": table(
            ("attempt", "Slurm job", "nodes", "rounds", "state", "exit code", "began", "time"),
            [_attempt_cells(attempt, document) for attempt in attempts],
        ),
        "reference": one.reference,
        "unfinished": any(row.state is not RunState.completed for row in rows),
    }


def _facts(about: LaunchDescription) -> Iterable[tuple[str, str]]:
    code, environment, run = about.code, about.environment, about.run
    changed = " with changes" if code.dirty is True else ""  # the file may say anything
    branch = f" on {code.branch}" if code.branch else ""
    driver = f", driver {environment.driver}" if environment.driver else ""
    yield "name", about.head.name
    yield "created", local_moment(about.head.created_at)
    yield "words", f"hpckit {shlex.join(about.arguments)}"
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
        duration(took),
    )
