"""`hpckit bench comm`: a launch of one run whose ranks measure each other; judged and kept.

Imports Hydra.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from contextlib import suppress
from pathlib import Path

from hpckit.cli.compose_options import build_compose_request, list_words_to_record
from hpckit.cli.launch_output import print_check_findings
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.interconnect.judge import (
    describe_measured_hardware,
    judge_interconnect,
    summarize_for_later_comparison,
)
from hpckit.features.interconnect.model import (
    CommBenchRequest,
    InterconnectMeasurement,
    InterconnectVerdict,
    KeptMeasurement,
    MeasuredShape,
)
from hpckit.model.launch import ClusterKind, DeviceKind, LaunchConfig
from hpckit.model.plain import from_plain, to_plain
from hpckit.operations.answered_run import (
    PLAIN_RUN,
    drop_task_and_watch_overrides,
    launch_and_await_answer,
    read_answer_of_run,
)
from hpckit.operations.check import check_launch
from hpckit.operations.environment import compose_settings_of_single_run, output_dir_override
from hpckit.operations.prepare import prepare_launch
from hpckit.record.launches import Launch
from hpckit.record.store import append_json_lines, make_private_folder, read_json_lines
from hpckit.values import replace
from hpckit.views.telemetry import read_nccl_transport

_ENTRY = "hpckit.features.interconnect.measure:measure"
_FORCED = (*PLAIN_RUN, "name=interconnect", f"entry_point={_ENTRY}", "command=null")
_MOST_BYTES = 64 * 2**20
"""Pairs of a thousand nodes take 30 MB; nothing longer is read."""
_START_S = 180.0
"""Of the time limit: importing torch everywhere, and connecting all ranks."""
_SEARCH_TOO = 1.5
_WHAT = "figures"


Outcome = tuple[InterconnectMeasurement, MeasuredShape, InterconnectVerdict]


def run_bench(arguments: argparse.Namespace, asked: CommBenchRequest, context: Context) -> Outcome | None:
    """Launch, wait for the figures, judge them, keep them, and remove the launch.

    None if the checks before a launch refused it, which they have said. Raises ConfigError and
    UsageError; RunError if the run ended without figures: its launch stays, and is named.
    """
    more = output_dir_override(arguments.output_dir, context.cwd)
    request = _build_bench_request(build_compose_request(arguments, context, more=more), asked)
    prepared = prepare_launch(
        request, list_words_to_record(arguments, context), context, quiet=arguments.json
    )
    if not print_check_findings(check_launch(prepared, context), context, may_insist=False):
        return None
    with launch_and_await_answer(prepared, context, _read_measurement, _WHAT, "measuring") as (
        launch,
        answer,
    ):
        told = read_nccl_transport(launch, 0)
    measured = replace(answer.value, network=told.network if told else None)
    # Compared with what was kept below the folder of launches; this is kept, too.
    cluster, output = _name_cluster_and_partition(prepared.points[0].settings), launch.folder.parent
    shape = describe_measured_hardware(measured, cluster)
    verdict = judge_interconnect(measured, shape, read_earlier_measurements(output))
    try:
        append_measurement(output, summarize_for_later_comparison(measured, cluster))
    except OSError as error:
        context.note(f"warning: the figures are not kept in {user_measurements_file(output)}: {error}")
    return measured, shape, verdict


def _build_bench_request(request: ComposeRequest, asked: CommBenchRequest) -> ComposeRequest:
    for word in request.overrides:
        if "=" not in word and not word.startswith("~"):
            raise UsageError(
                f"{word!r} is not an override; bench comm measures by itself, and takes no command",
                hint="for example: hpckit bench comm cluster=lab resources.nodes=4",
            )
    # Hydra's grammar is JSON without quotes for such values.
    values = json.dumps(to_plain(asked), separators=(",", ":")).replace('"', "")
    minutes = math.ceil((asked.time_s * _SEARCH_TOO + _START_S) / 60)
    own = replace(
        request,
        overrides=(
            *drop_task_and_watch_overrides(request.overrides, timeout_min=minutes),
            *_FORCED,
            f"++comm_bench={values}",
        ),
        command=None,
    )
    _refuse_unmeasurable_ranks(compose_settings_of_single_run(own, "bench comm measures with one"), asked)
    return own


def _refuse_unmeasurable_ranks(settings: LaunchConfig, asked: CommBenchRequest) -> None:
    resources = settings.resources
    ranks = resources.nodes * resources.tasks_per_node
    gpus = resources.gpus_per_node or resources.gres
    if gpus and settings.runtime.device is not DeviceKind.cpu:
        return
    if ranks == 1:
        raise UsageError(
            "one rank without a GPU has nothing to measure",
            hint="resources=cpu_pair, resources=one_node, or resources.nodes=2",
        )
    if all(operation.copies_between_host_and_gpu for operation in asked.operations):
        raise UsageError(
            f"--ops {','.join(asked.operations)}: these ranks use no GPU to copy to or from",
            hint="resources.gpus_per_node=1 (and no runtime.device=cpu), or another operation",
        )


def _read_measurement(launch: Launch) -> InterconnectMeasurement | None:
    file = launch.paths.run(0).interconnect
    return read_answer_of_run(file, InterconnectMeasurement, _WHAT, _MOST_BYTES)


def _name_cluster_and_partition(settings: LaunchConfig) -> str:
    """Return what tells this cluster, and a part of it, from others of the same user."""
    if settings.cluster.kind is not ClusterKind.slurm:
        return settings.cluster.kind.value
    partition = settings.resources.partition or settings.cluster.partition or "default"
    return f"{settings.cluster.kind.value} {partition}"


_MOST_KEPT_BYTES = 64 * 2**20
"""A hundred thousand measurements; a longer file is none of ours."""


def user_measurements_file(output_dir: Path) -> Path:
    """Return the file of the caller's own measurements: users may share a folder of launches.

    It has a line for each. Another user's figures cannot be compared with, and are not read.
    """
    return output_dir / f".interconnect-{os.getuid()}.jsonl"


def read_earlier_measurements(output_dir: Path) -> tuple[KeptMeasurement, ...]:
    """Return earlier measurements, oldest first; lines that are none are left out.

    None if the file is not the caller's own, is a link, or cannot be read.
    """
    file = user_measurements_file(output_dir)
    try:
        stat = file.lstat()
        if stat.st_uid != os.getuid() or file.is_symlink() or stat.st_size > _MOST_KEPT_BYTES:
            return ()
        records = list(read_json_lines(file))
    except OSError:
        return ()
    found = []
    for record in records:
        with suppress(ValueError, TypeError, RecursionError):
            found.append(from_plain(KeptMeasurement, record))
    return tuple(found)


def append_measurement(output_dir: Path, measured: KeptMeasurement) -> None:
    """Append a measurement in one write; raises OSError, also where the file is another user's."""
    file = user_measurements_file(make_private_folder(output_dir))
    if file.is_symlink() or (file.exists() and file.lstat().st_uid != os.getuid()):
        raise PermissionError(f"{file} is not your own file")
    append_json_lines(file, to_plain(measured))
