"""The description of a run or a launch, as text, as YAML and as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import yaml

from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.counted import format_short_list
from hpckit.model.events import SettingsChanged
from hpckit.model.moment import format_local_datetime, format_slurm_duration
from hpckit.model.node_setup import ContainerCheck
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.states import RunState
from hpckit.report.escape import escape_controls
from hpckit.report.failures import format_failure
from hpckit.report.machine import launch_head_to_json
from hpckit.report.rows import LaunchHead, RunRow, format_settings_change
from hpckit.report.text import Page, TextTable, format_run_counts
from hpckit.values import dataclass, field

_LABEL = 13
_SHOWN_FILES = 8
_SHOWN_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeDescription:
    """Where the code of a launch is from. `dirty` and `commit` are null outside of git.

    `changed_files` are the files that differed from the commit; `snapshot` is whether the code was copied.
    """

    project: str
    snapshot: bool
    commit: str | None
    branch: str | None
    dirty: bool | None
    changed_files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDescription:
    """The environment of a launch when it was frozen; null means not recorded."""

    python: str | None
    executable: str | None
    torch: str | None
    hpckit: str | None
    host: str | None
    driver: str | None
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDescription:
    """One attempt of a run; `state` is null while it has not ended."""

    attempt: int
    job: str | None
    nodes: tuple[str, ...]
    rounds: int
    state: RunState | None
    exit_code: int | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What only a single run has. `program` is its entry point, or the words of its command.

    `settings_changes` are the resumes that gave it other settings, from its next attempt on. `inside` is what
    its last agent found in its image; null if it is in none, or none has started.
    """

    row: RunRow
    overrides: tuple[str, ...]
    signature: str
    program: str
    config: Mapping[str, Any]
    attempts: tuple[AttemptDescription, ...]
    settings_changes: tuple[SettingsChanged, ...] = ()
    inside: ContainerCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDescription:
    """A launch. `run` is the run to describe, null if there are several, which are in `rows`.

    `resources` are the requested ones of a run; `paths` are by name.
    """

    head: LaunchHead
    arguments: tuple[str, ...]
    jobs: tuple[str, ...]
    rows: tuple[RunRow, ...]
    code: CodeDescription
    environment: EnvironmentDescription
    resources: Mapping[str, Any]
    paths: Mapping[str, str] = field(default_factory=dict)
    run: RunDescription | None = None


def format_config_as_yaml(config: Mapping[str, Any]) -> str:
    """Return a configuration as YAML that reads back to the same and is safe for a terminal."""
    plain = to_plain(config)
    text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))
    return text if escape_controls(text) == text else str(yaml.safe_dump(plain, sort_keys=False, width=100))


def render_description_page(about: LaunchDescription, now: datetime) -> Page:
    """Return the page of `show`."""
    page: list[TextTable | str] = ["\n".join(_format_description_lines(about, now))]
    if about.run is None:
        cells = tuple(
            (row.run, row.state.value, row.job or "", " ".join(row.overrides))
            for row in about.rows[:_SHOWN_RUNS]
        )
        page += ["", TextTable(header=("run", "state", "job", "overrides"), rows=cells)]
        page.append(format_run_counts([row.state for row in about.rows]))
        if len(about.rows) > _SHOWN_RUNS:
            page.append(f"the first {_SHOWN_RUNS} of them; `hpckit status` lists all")
        return page
    if about.run.attempts:
        header = ("attempt", "job", "nodes", "rounds", "state", "began", "time")
        attempts = tuple(
            (
                str(attempt.attempt),
                attempt.job or "",
                compress_to_hostlist(attempt.nodes),
                str(attempt.rounds),
                "" if attempt.state is None else attempt.state.value,
                "" if attempt.started_at is None else format_local_datetime(attempt.started_at),
                ""
                if attempt.started_at is None
                else format_slurm_duration((attempt.ended_at or now) - attempt.started_at),
            )
            for attempt in about.run.attempts
        )
        page += ["", TextTable(header=header, rows=attempts)]
    return [*page, "\nconfiguration:", format_config_as_yaml(about.run.config).rstrip("\n")]


def _format_description_lines(about: LaunchDescription, now: datetime) -> Iterator[str]:
    head, run, code, environment = about.head, about.run, about.code, about.environment
    driver = environment.driver and f"driver {environment.driver}"
    in_image = any(row.container is not None for row in about.rows)
    python = "launched by" if in_image else "python"
    rows: list[tuple[str, str]] = [("launch", head.id)]
    if run is not None:
        rows = [("run", run.row.run), ("state", _format_state_with_reason(run.row))]
        rows += [("stage", run.row.stage or ""), ("overrides", " ".join(run.overrides))]
        rows += [("resumed", "; ".join(map(format_settings_change, run.settings_changes)))]
        rows += [("program", run.program), ("signature", run.signature)]
        if (container := run.row.container) is not None:
            rows += [("image", f"{container.image}, {container.digest}, {container.platform}")]
        if (inside := run.inside) is not None:
            found = (f"Python {inside.python}", inside.torch and f"torch {inside.torch}")
            rows += [("inside", ", ".join(filter(None, found)))]
    age = format_slurm_duration(now - head.created_at)
    rows += [
        ("name", head.name),
        ("created", f"{format_local_datetime(head.created_at)} ({age} ago)"),
        ("words", f"hpckit {shlex.join(about.arguments)}"),
        ("jobs", ", ".join(about.jobs)),
        ("resources", ", ".join(f"{name}={value}" for name, value in about.resources.items())),
        ("code", _format_code_origin(code)),
        ("changed", format_short_list(code.changed_files, _SHOWN_FILES)),
        (python, ", ".join(filter(None, (environment.python, environment.executable)))),
        ("torch", "" if in_image else environment.torch or ""),
        ("hpckit", environment.hpckit or ""),
        ("frozen on", ", ".join(filter(None, (environment.host, driver)))),
        ("modules", " ".join(environment.modules)),
        *((name.replace("_", " "), path) for name, path in about.paths.items()),
    ]
    if head.foreign is not None:
        rows.append(("not yours", head.foreign.reason))
    return (f"{label:{_LABEL}}{text}" for label, text in rows if text)


def _format_state_with_reason(row: RunRow) -> str:
    if row.failure is not None:
        return f"{row.state}: {format_failure(row.failure)}"
    reason = row.early or row.blocked or row.note
    return f"{row.state} ({reason})" if reason else row.state.value


def _format_code_origin(code: CodeDescription) -> str:
    where = f"{code.project}{'' if code.snapshot else ' (no snapshot: it runs from there)'}"
    if code.commit is None:
        return f"{where}, outside git"
    branch = f" on {code.branch}" if code.branch else ""
    changed = {True: ", with changes", False: ", clean", None: ""}[code.dirty]
    return f"{where}, commit {code.commit}{branch}{changed}"


def description_to_json(about: LaunchDescription) -> dict[str, Any]:
    """Return the document that `show --json` prints."""
    document = {
        **launch_head_to_json(about.head),
        **attributes_to_json(about, "arguments jobs"),
        "runs": [attributes_to_json(row, "run index state overrides") for row in about.rows],
        **attributes_to_json(about, "resources code environment paths foreign=head.foreign"),
    }
    if about.run is not None:
        document |= attributes_to_json(about.run.row, "run index state failure stage")
        document |= attributes_to_json(about.run, "overrides program signature attempts")
        changes = [attributes_to_json(change, "at words cause") for change in about.run.settings_changes]
        container, inside = about.run.row.container, about.run.inside
        document |= {
            "settings_changes": changes,
            "container": container and attributes_to_json(container, "runtime image digest platform"),
            "inside": inside and attributes_to_json(inside, "python torch cuda"),
            **attributes_to_json(about.run, "config"),
        }
    return document
