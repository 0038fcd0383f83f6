"""docs/reference/run-folder.md is the reference of an interface: it leaves nothing out."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from pathlib import Path

import pytest

from hpckit.model.events import Event
from hpckit.model.failure import Failure, RankExit
from hpckit.model.profile import ProfileAnswer, RankProfile
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuTrouble,
    HostCounter,
    HostGauge,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetrySegment,
)
from hpckit.record.layout import LaunchPaths

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md").read_text()


@pytest.mark.parametrize("kind", Event.__subclasses__(), ids=lambda kind: kind.kind)
def test_page_explains_every_event_with_its_fields(kind: type[Event]) -> None:
    """Each event has a line, and each of its fields stands in it."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{kind.kind}` "))
    missing = [field.name for field in fields(kind) if f"`{field.name}`" not in line]
    assert missing == ["at"]


@pytest.mark.parametrize("kind", [Failure, RankExit, ProfileAnswer, RankProfile])
def test_page_names_every_field_of_an_end(kind: type) -> None:
    """A failure and an exit record are explained to the last field."""
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in PAGE] == []


def test_page_shows_every_path_of_the_layout() -> None:
    """Each path the layout knows is in the tree."""
    launch = LaunchPaths(Path("L"))
    attempt = launch.run(0).attempt(1)
    notice = launch.notice("failed-00000-001")
    paths = [
        *(launch.launch, launch.events, launch.environment, launch.code, launch.code_record),
        *(
            launch.code_sums,
            launch.resume_lock,
            launch.signatures,
            launch.code_diff,
            launch.logs,
            launch.local_log,
            launch.job_log(0, "123_4"),
        ),
        *(launch.script(0), launch.configs_file_of_run(0), launch.run(0).folder, launch.run(0).config),
        *(launch.run(0).checkpoints, launch.run(0).attempts, attempt.folder, attempt.events),
        *(attempt.secret, attempt.address, attempt.progress, attempt.metrics, attempt.agents_log),
        launch.secrets,
        attempt.last_metrics,
        *(attempt.reserve, attempt.stacks_requests, attempt.stacks_answer),
        *(attempt.profile_requests, attempt.profiles, attempt.round(0).profile_trace("NAME", 0)),
        *(attempt.round(0).profile_folder("NAME"), attempt.profile_answer("NAME")),
        *(attempt.round(0).nsys_report(0), attempt.round(0).memory_report(0)),
        attempt.round(0).memory_snapshot(0),
        attempt.old_telemetry,
        *(attempt.rounds, attempt.round(0).folder, attempt.round(0).rank_log(0)),
        *(attempt.round(0).rank_exception_file(0), attempt.round(0).rank_stacks_file(0)),
        *(launch.run(0).chaos_marks, launch.run(0).chaos_log),
        launch.run(0).successor_lock,
        *(launch.run(0).call, launch.run(0).call_result(0)),
        launch.notices,
        *(notice.notice_file, notice.sending_claim_file, notice.delivered_file, notice.sent_marker_file),
        *(launch.search, launch.space, launch.journal, launch.sampler, launch.run(0).trial),
    ]
    assert [path.name for path in paths if path.name not in PAGE] == []


@pytest.mark.parametrize(
    "words",
    [*(GpuGauge, GpuCounter, ClockReason, GpuTrouble), *(HostGauge, HostCounter, TelemetryEventKind)],
    ids=lambda words: words.__name__,
)
def test_page_explains_every_word_of_telemetry(words: type[StrEnum]) -> None:
    """No gauge, counter, reason, trouble or event is left out."""
    assert [word for word in words if f"`{word}`" not in PAGE] == []


@pytest.mark.parametrize("kind", [TelemetrySegment, GpuDevice, TelemetryEvent])
def test_page_explains_every_field_of_telemetry(kind: type) -> None:
    """Each line of a telemetry file is explained to the last field."""
    names = [field.name for field in fields(kind) if field.name != "kind"]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
