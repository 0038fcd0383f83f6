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

from hpckit.cli.compose_options import compose_request, recorded_words
from hpckit.cli.launch_output import say_checked
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.interconnect.judge import judge_interconnect, kept_of, shape_of
from hpckit.features.interconnect.model import (
    CommBenchRequest,
    InterconnectMeasurement,
    InterconnectVerdict,
    KeptMeasurement,
    MeasuredShape,
)
from hpckit.model.launch import ClusterKind, DeviceKind, LaunchConfig
from hpckit.model.plain import from_plain, to_plain
from hpckit.operations.answered_run import PLAIN_RUN, answered, plain_words, read_answer
from hpckit.operations.check import check_launch
from hpckit.operations.environment import compose_one, output_overrides
from hpckit.operations.prepare import prepare
from hpckit.record.launches import Launch
from hpckit.record.store import append_lines, make_folder, read_lines
from hpckit.values import replace
from hpckit.views.telemetry import nccl_transport

_ENTRY = "hpckit.features.interconnect.measure:measure"
_FORCED = (*PLAIN_RUN, "name=interconnect", f"entry_point={_ENTRY}", "command=null")
_MOST_BYTES = 64 * 2**20
"""Pairs of a thousand nodes take 30 MB; nothing longer is read."""
_START_S = 180.0
"""Of the time limit: importing torch everywhere, and connecting all ranks."""
_SEARCH_TOO = 1.5
_WHAT = "figures"


Outcome = tuple[InterconnectMeasurement, MeasuredShape, InterconnectVerdict]


def run_bench(
    arguments: argparse.Namespace, asked: CommBenchRequest, context: Context
) -> Outcome | None:
    """Launch, wait for the figures, judge them, keep them, and remove the launch.

    None if the checks before a launch refused it, which they have said. Raises ConfigError and
    UsageError; RunError if the run ended without figures: its launch stays, and is named.
    """
    more = output_overrides(arguments.output_dir, context.cwd)
    request = _bench_request(compose_request(arguments, context, more=more), asked)
    prepared = prepare(request, recorded_words(arguments, context), context, quiet=arguments.json)
    if not say_checked(check_launch(prepared, context), context, may_insist=False):
        return None
    with answered(prepared, context, _read, _WHAT, "measuring") as (launch, answer):
        told = nccl_transport(launch, 0)
    measured = replace(answer.value, network=told.network if told else None)
    # Compared with what was kept below the folder of launches; this is kept, too.
    cluster, output = _cluster_name(prepared.points[0].settings), launch.folder.parent
    shape = shape_of(measured, cluster)
    verdict = judge_interconnect(measured, shape, read_kept(output))
    try:
        keep(output, kept_of(measured, cluster))
    except OSError as error:
        context.note(f"warning: the figures are not kept in {kept_file(output)}: {error}")
    return measured, shape, verdict


def _bench_request(request: ComposeRequest, asked: CommBenchRequest) -> ComposeRequest:
    """Return the request for the launch whose ranks measure what is asked."""
    for word in request.overrides:
        if "=" not in word and not word.startswith("~"):
            raise UsageError(
                f"{word!r} is no override; bench comm measures by itself, and takes no command",
                hint="for example: hpckit bench comm cluster=lab resources.nodes=4",
            )
    # Hydra's grammar is JSON without quotes for such values.
    values = json.dumps(to_plain(asked), separators=(",", ":")).replace('"', "")
    minutes = math.ceil((asked.time_s * _SEARCH_TOO + _START_S) / 60)
    own = replace(
        request,
        overrides=(
            *plain_words(request.overrides, timeout_min=minutes),
            *_FORCED,
            f"++comm_bench={values}",
        ),
        command=None,
    )
    _check_ranks(compose_one(own, "bench comm measures with one"), asked)
    return own


def _check_ranks(settings: LaunchConfig, asked: CommBenchRequest) -> None:
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
    if all(operation.needs_device for operation in asked.operations):
        raise UsageError(
            f"--ops {','.join(asked.operations)}: these ranks use no GPU to copy to or from",
            hint="resources.gpus_per_node=1 (and no runtime.device=cpu), or another operation",
        )


def _read(launch: Launch) -> InterconnectMeasurement | None:
    file = launch.paths.run(0).interconnect
    return read_answer(file, InterconnectMeasurement, _WHAT, _MOST_BYTES)


def _cluster_name(settings: LaunchConfig) -> str:
    """Return what tells this cluster, and a part of it, from others of the same user."""
    if settings.cluster.kind is not ClusterKind.slurm:
        return settings.cluster.kind.value
    partition = settings.resources.partition or settings.cluster.partition or "default"
    return f"{settings.cluster.kind.value} {partition}"


_MOST_KEPT_BYTES = 64 * 2**20
"""A hundred thousand measurements; a longer file is none of ours."""


def kept_file(output_dir: Path) -> Path:
    """Return the file of the caller's own measurements: users may share a folder of launches.

    It has a line for each. Another user's figures are no yardstick, and are not read.
    """
    return output_dir / f".interconnect-{os.getuid()}.jsonl"


def read_kept(output_dir: Path) -> tuple[KeptMeasurement, ...]:
    """Return earlier measurements, oldest first; lines that are none are left out.

    None if the file is not the caller's own, is a link, or cannot be read.
    """
    file = kept_file(output_dir)
    try:
        stat = file.lstat()
        if stat.st_uid != os.getuid() or file.is_symlink() or stat.st_size > _MOST_KEPT_BYTES:
            return ()
        records = list(read_lines(file))
    except OSError:
        return ()
    found = []
    for record in records:
        with suppress(ValueError, TypeError, RecursionError):
            found.append(from_plain(KeptMeasurement, record))
    return tuple(found)


def keep(output_dir: Path, measured: KeptMeasurement) -> None:
    """Append a measurement in one write; raises OSError, also where the file is another user's."""
    file = kept_file(make_folder(output_dir))
    if file.is_symlink() or (file.exists() and file.lstat().st_uid != os.getuid()):
        raise PermissionError(f"{file} is not your own file")
    append_lines(file, to_plain(measured))
