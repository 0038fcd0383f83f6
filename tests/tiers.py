"""Two tiers of tests: what every change runs, and with `--thorough` all other combinations, too.

Which tests are `exact` stands here, too. The result of an exact test follows from its input: a
number, a loss, the state of a checkpoint, a golden text. If it is wrong once it is wrong, and
`scripts/test` gives it no second try. What waits for processes, for files of others or for time
may fail on a busy machine only: it is not exact, unless it says that numbers or states come out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePath
from typing import Any

import pytest

thorough = pytest.mark.thorough

EXACT = (
    "batch/shared_job/test_slots.py::test_runs_that_share_a_job_measure_their_own_gpus",
    "cli/commands/test_check.py",
    "cli/commands/test_checkpoint.py",
    "cli/commands/test_results.py",
    "cli/commands/test_stacks_text.py",
    "cli/commands/test_status.py::test_status_adds_up_the_parts_of_a_run",
    "cli/commands/test_status_verdicts.py",
    "cli/test_json_numbers.py",
    "cli/test_many_rows.py",
    "cli/test_searching.py",
    "config",
    "experiments",
    "guards",
    "integration/test_campaign.py",
    "integration/test_check.py",
    "integration/test_containers.py",
    "integration/test_elastic.py",
    "integration/test_faults_disk.py",
    "integration/test_faults_drain.py",
    "integration/test_faults_frozen.py",
    "integration/test_faults_nodes.py",
    "integration/test_launch.py::test_launch_trains_charlm_on_two_nodes",
    "integration/test_trainers.py",
    "integrations/test_trainers.py::test_losses_after_a_kill_and_a_notice_are_those_of_a_plain_script",
    "model",
    "observe/nvml",
    "observe/test_aggregate.py",
    "observe/test_amd.py",
    "observe/test_gpu_shares.py",
    "observe/test_host.py::test_energy_of_processors_never_wraps_around",
    "observe/test_host.py::test_the_job_is_slurms_cgroup_around_this_process",
    "observe/test_retention.py",
    "observe/test_totals.py",
    "features/capacity",
    "features/exporting",
    "features/interconnect",
    "features/profiling",
    "features/reporting",
    "features/top/test_frame.py",
    "features/top/test_plot.py",
    "planning",
    "record/metrics",
    "record/test_counted_events.py",
    "record/test_damaged_records.py",
    "record/test_durations.py",
    "record/test_impossible_numbers.py",
    "record/test_index.py",
    "record/test_launches.py",
    "record/test_node_history.py",
    "record/test_telemetry.py",
    "report",
    "runtime/agent/test_hang_detector.py",
    "runtime/checkpoint",
    "runtime/data",
    "runtime/model_check",
    "runtime/parallel",
    "runtime/rank/test_arguments.py",
    "runtime/rank/test_keeping.py",
    "runtime/rank/test_leave_after_restore.py",
    "runtime/rank/test_metric_reports.py",
    "runtime/rank/test_parameters.py",
    "runtime/rank/test_rows.py",
    "runtime/rank/test_save_interval.py",
    "runtime/rank/test_step_boundary.py",
    "runtime/rank/test_step_times.py",
    "runtime/rank/test_trained_steps.py",
    "runtime/study",
    "runtime/supervisor/test_attempt.py::test_attempt_trains_in_one_process_group",
    "runtime/supervisor/test_journal.py",
    "runtime/supervisor/test_regrowth.py",
    "runtime/supervisor/test_run_ends.py::test_signal_to_one_rank_costs_a_round_and_no_step",
    "runtime/test_generators.py",
    "slurm/test_parse.py",
    "slurm/test_parse_json.py",
    "slurm/test_quoting.py",
    "slurm/test_script.py",
    "slurm/test_site_parse.py",
    "views",
)
"""Folders, files and tests of tests/ that are exact; properties (hypothesis) are, wherever."""

NOT_EXACT = (
    "features/exporting/test_export.py",
    "features/interconnect/test_bench.py",
    "features/reporting/test_report.py",
    "features/reporting/test_report_browser.py",
    "runtime/checkpoint/test_fence.py",
)
"""What in those folders waits for something else: a browser, ranks, a folder that comes back."""


def is_exact(test: pytest.Item) -> bool:
    """Tell whether a test is exact by its place, or because it is a property of its input."""
    if getattr(getattr(test, "obj", None), "is_hypothesis_test", False):
        return True
    return is_exact_place(test.nodeid.partition("[")[0].removeprefix("tests/"))


def is_exact_place(place: str) -> bool:
    """Tell whether `FILE.py` or `FILE.py::TEST`, below tests/, is exact."""
    file = place.partition("::")[0]
    places = {place, file, *(path.as_posix() for path in PurePath(file).parents)}
    return not places.isdisjoint(EXACT) and places.isdisjoint(NOT_EXACT)


def in_tiers(cases: Iterable[str], usual: Collection[str]) -> list[Any]:
    """Return all cases as values of a parameter, marked unless they are usual."""
    names = list(cases)
    assert not set(usual) - set(names), set(usual) - set(names)
    return [name if name in usual else pytest.param(name, marks=thorough) for name in names]


def chosen(
    request: pytest.FixtureRequest, cases: dict[str, Any], needed: Collection[str] = ()
) -> dict[str, Any]:
    """Return the cases that tests of this module run with: by their parameter `name`, or `needed`.

    So a world does not work through cases that nobody asks for.
    """
    here = [one for one in request.session.items if one.path == request.path]
    calls = [getattr(one, "callspec", None) for one in here]
    names = {call.params.get("name") for call in calls if call is not None} | {*needed}
    return {name: case for name, case in cases.items() if name in names}
