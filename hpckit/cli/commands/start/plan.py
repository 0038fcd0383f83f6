"""`hpckit plan`: what training a model will need, before anything waits in a queue."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpckit.cli.compose_options import add_configuration, compose_request
from hpckit.cli.options import add_json, add_output_dir, output_dir
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.capacity.plan import CapacityPlan
from hpckit.model.capacity.setup import AttentionKind, NumberType, OptimizerKind, Recomputation
from hpckit.planning.capacity.calibrate import calibrate, like_run
from hpckit.planning.capacity.counted import plan_counted, rank_overrides
from hpckit.planning.capacity.gpus import GPUS, gpu_named
from hpckit.planning.capacity.power import SiteRates, capped, power_draw
from hpckit.planning.capacity.request import (
    CapacityRequest,
    plan_capacity,
    search_plans,
)
from hpckit.planning.capacity.search import pareto
from hpckit.planning.capacity.words import read_count
from hpckit.record.lookup import find_evidence
from hpckit.record.store import open_plain
from hpckit.report.capacity.machine import plan_object, power_object, search_object
from hpckit.report.capacity.text import plan_text, power_text, search_text
from hpckit.views.measured import measured_run

EPILOG = """\
examples:
  hpckit plan --model llama3-8b --gpu H100-SXM --gpus 64 --parallel shard=64 --recompute full
  hpckit plan --model llama3-70b --gpu H100-SXM --gpus 256 --global-batch 256 --search
  hpckit plan --model 'hidden=4096 layers=32 heads=32' --gpu A100-80 --gpus 8 --zero 3
  hpckit plan --model parameters=175e9 --gpu A100-80 --gpus 8 --zero 3   its states alone
  hpckit plan experiment=charlm parallel=fsdp --gpu A100-80 --gpus 8   a model of your own code
  hpckit plan --from RUN --model gpt2 --gpu A100-80 --gpus 64   as far off as for a run of yours
  hpckit plan --power --gpu A100-80 --gpus 10000

Nothing is submitted, and no cluster is asked. The guide says what is modelled, and what is not.
"""

_LARGEST_CONFIG = 4_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="instead of --model: an experiment, in the words of `launch`, whose model is counted",
    )
    add_configuration(parser)
    parser.add_argument(
        "--model",
        metavar="NAME|FILE|NUMBERS",
        help="a published model, a config.json, or numbers: 'hidden=4096 layers=32 heads=32'",
    )
    parser.add_argument("--gpu", metavar="NAME", required=True, help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--gpus", metavar="N", type=int, help="how many (default: 1)")
    parser.add_argument(
        "--power-cap-w", metavar="W", type=float, help="of each GPU: it computes slower"
    )
    parser.add_argument(
        "--parallel",
        metavar="KEY=N",
        nargs="+",
        action="extend",
        default=[],
        help="sizes: tensor, pipeline, context, shard, stages_per_rank; sequence=true|false",
    )
    for name, what in (
        ("global-batch", "sequences of a step (default: what the layout computes at once)"),
        ("micro-batch", "sequences that a GPU computes at once (default: 1)"),
        ("sequence", "tokens of a sequence (default: as published, up to 8192; else 4096)"),
        ("vocab", "how many tokens there are (default: the model's)"),
    ):
        parser.add_argument(f"--{name}", metavar="N", type=int, help=what)
    _add_choice(parser, "precision", "default: bf16, or fp16 where a GPU has no bf16", NumberType)
    _add_choice(parser, "optimizer", "whose state is kept", OptimizerKind, OptimizerKind.adam)
    _add_choice(parser, "recompute", "what the backward pass computes again", Recomputation)
    _add_choice(parser, "attention", "default: eager for a GPT, else flash", AttentionKind)
    parser.add_argument(
        "--zero",
        metavar="STAGE",
        type=int,
        choices=range(4),
        help="0 to 3: states of mixed-precision Adam, sharded over data ranks as ZeRO does",
    )
    parser.add_argument(
        "--kernels",
        choices=("fused", "plain"),
        default="fused",
        help="plain: norms and functions as torch runs them without torch.compile",
    )
    parser.add_argument(
        "--step-s", metavar="S", type=float, help="a measured step, instead of a prediction"
    )
    parser.add_argument(
        "--from",
        dest="measured",
        metavar="RUN",
        help="a run that trained this model on GPUs: predictions are off as they were for it",
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        help="of the training: 1e11, or 100B (default: 20 per parameter)",
    )
    parser.set_defaults(cfg=None, info=None, multirun=False, command=None)
    parser.add_argument("--search", action="store_true", help="find the fastest layouts that fit")
    parser.add_argument("--power", action="store_true", help="power alone; needs no model")
    _add_site(parser)
    add_json(parser)
    add_output_dir(parser)


def _add_choice(
    parser: argparse.ArgumentParser, name: str, what: str, of: Any, default: Any = None
) -> None:
    parser.add_argument(
        f"--{name}",
        choices=[one.value for one in of],
        default=None if default is None else default.value,
        help=what if default is None else f"{what} (default: {default.value})",
    )


def _add_site(parser: argparse.ArgumentParser) -> None:
    usual = SiteRates()
    parser.add_argument(
        "--pue",
        metavar="X",
        type=float,
        default=usual.pue,
        help=f"the facility's power per power of its nodes (default: {usual.pue})",
    )
    parser.add_argument("--price-per-gpu-hour", metavar="X", type=float, help="in any currency")
    parser.add_argument("--carbon-g-per-kwh", metavar="X", type=float, help="of the site's grid")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a plan; returns 0, also if it does not fit. Raises HpckitError."""
    gpu = _gpu(arguments)
    site = SiteRates(
        pue=arguments.pue,
        price_per_gpu_hour=arguments.price_per_gpu_hour,
        carbon_g_per_kwh=arguments.carbon_g_per_kwh,
    )
    if arguments.overrides:
        plan = _counted(arguments, context, gpu, site)
        _say(context, arguments, plan_object(plan), plan_text(plan))
        return 0
    if arguments.model is None:
        if not arguments.power:
            raise UsageError("--model is missing", hint="name a model; --power alone needs none")
        draw = power_draw(gpu, CapacityRequest(gpu=gpu, gpus=_gpus(arguments)).gpus, site.pue)
        _say(context, arguments, power_object(draw), power_text(draw))
        return 0
    request = _request(arguments, context, site)
    if arguments.measured is not None:
        request = _calibrated(arguments, context, request)
    if arguments.search:
        found, by = search_plans(request), request.calibration
        smaller = pareto(found)
        text = search_text(found, smaller, by, request.defaults)
        _say(context, arguments, search_object(found, smaller, by), text)
        return 0
    plan = plan_capacity(request)
    _say(context, arguments, plan_object(plan), plan_text(plan))
    return 0


def _gpu(arguments: argparse.Namespace) -> GpuSpec:
    gpu = gpu_named(arguments.gpu)
    return gpu if arguments.power_cap_w is None else capped(gpu, arguments.power_cap_w)


def _gpus(arguments: argparse.Namespace) -> int:
    return 1 if arguments.gpus is None else int(arguments.gpus)


_OF_SHAPES = (
    *("model", "parallel", "global_batch", "micro_batch", "sequence", "vocab", "precision"),
    *("recompute", "attention", "zero", "step_s", "measured", "tokens", "search", "power"),
)
"""Options that need a transformer's shape, or that an experiment says itself."""


_OPTIONS = {name: name.replace("_", "-") for name in _OF_SHAPES} | {"measured": "from"}


def _counted(
    arguments: argparse.Namespace, context: Context, gpu: GpuSpec, site: SiteRates
) -> CapacityPlan:
    """Return the plan of an experiment, whose model is counted; raises HpckitError."""
    for name in _OF_SHAPES:
        if getattr(arguments, name) not in (None, False, []):
            raise UsageError(
                f"--{_OPTIONS[name]} does not go with {arguments.overrides[0]}: the "
                "experiment says what its model and its layout are",
                hint="leave it out, or describe the model with --model instead of an experiment",
            )
    from hpckit.operations.capacity import count_model  # noqa: PLC0415  # it imports Hydra

    ranks = () if arguments.gpus is None else rank_overrides(gpu, arguments.gpus)
    request = compose_request(arguments, context, more=ranks)
    found = count_model.count_model(request, context, quiet=arguments.json)
    return plan_counted(found.model, found.layout, gpu, OptimizerKind(arguments.optimizer), site)


def _calibrated(
    arguments: argparse.Namespace, context: Context, request: CapacityRequest
) -> CapacityRequest:
    """Return a request whose predictions follow a measured run; raises HpckitError."""
    for name in ("step_s", "zero"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                f"--{_OPTIONS[name]} does not go with --from: "
                + ("the step is predicted" if name == "step_s" else "no run of hpckit has ZeRO"),
                hint="leave one of the two out",
            )
    selection = find_evidence(arguments.measured, output_dir(arguments, context), cwd=context.cwd)
    launch, index = selection.launch, selection.index
    if index is None and len(launch.runs) > 1:
        raise UsageError(
            f"--from {arguments.measured}: {launch.id} has {len(launch.runs)} runs",
            hint=f"name one, such as --from {launch.id}.0",
        )
    run = measured_run(launch, index or 0)
    found = calibrate(request, run)
    return replace(like_run(request, run, gpus=arguments.gpus), calibration=found)


def _say(context: Context, arguments: argparse.Namespace, found: dict[str, Any], text: str) -> None:
    if arguments.json:
        context.say_json(found)
    else:
        context.say(text)


def _request(arguments: argparse.Namespace, context: Context, site: SiteRates) -> CapacityRequest:
    return CapacityRequest(
        gpu=_gpu(arguments),
        gpus=_gpus(arguments),
        model=arguments.model,
        config=_config(arguments.model, context),
        parallel=arguments.parallel,
        global_batch=arguments.global_batch,
        micro_batch=arguments.micro_batch,
        sequence=arguments.sequence,
        vocab=arguments.vocab,
        precision=arguments.precision and NumberType(arguments.precision),
        optimizer=OptimizerKind(arguments.optimizer),
        recompute=arguments.recompute and Recomputation(arguments.recompute),
        attention=arguments.attention and AttentionKind(arguments.attention),
        zero=arguments.zero,
        fused=arguments.kernels == "fused",
        step_s=arguments.step_s,
        tokens=None if arguments.tokens is None else read_count("--tokens ", arguments.tokens),
        site=site,
    )


def _config(model: str, context: Context) -> dict[str, Any] | None:
    """Return what a model's configuration file says, if a file is meant; raises UsageError."""
    if not (model.endswith(".json") or "/" in model):
        return None
    path = context.cwd / Path(model)
    hint = "name a model's config.json"
    try:
        with open_plain(path) as file:
            data = file.read(_LARGEST_CONFIG + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path!s:.200} is no path", hint=hint) from error
    if len(data) > _LARGEST_CONFIG:
        raise UsageError(f"{path} is larger than {_LARGEST_CONFIG // 1_000_000} MB", hint=hint)
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no JSON object", hint=hint)
    return found
