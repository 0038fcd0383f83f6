"""`hpckit plan`: what training a model will need, before anything waits in a queue."""

from __future__ import annotations

import argparse
from typing import Any

from hpckit.cli.compose_options import add_configuration, compose_request
from hpckit.cli.options import add_common, output_dir, whole
from hpckit.cli.parsing import Once
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.capacity.calibrate import calibrate, like_run, measured_run
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.machine import plan_object, power_object, search_object
from hpckit.features.capacity.model_plan import CapacityPlan
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    GpuSpec,
    LossKind,
    NumberType,
    OptimizerKind,
    Recomputation,
)
from hpckit.features.capacity.power import SiteRates, power_draw
from hpckit.features.capacity.request import CapacityRequest, plan_capacity
from hpckit.features.capacity.search import find_layouts
from hpckit.features.capacity.text import plan_text, power_text, search_text
from hpckit.features.capacity.verb_words import (
    check_together,
    only_of_cluster,
    option_name,
    planned_cluster,
    planned_gpu,
    planned_rates,
    read_config,
)
from hpckit.features.capacity.words import read_count
from hpckit.planning.secrecy import known_secrets, masked_words
from hpckit.record.lookup import find_evidence
from hpckit.values import replace

EPILOG = """\
examples:
  hpckit plan --model llama3-8b --gpu H100-SXM --gpus 64 --parallel shard=64 --recompute full
  hpckit plan --model llama3-70b --gpu H100-SXM --gpus 256 --global-batch 256 --search
  hpckit plan --model 'hidden=4096 layers=32 heads=32' --gpu A100-80 --gpus 8 --zero 3
  hpckit plan --model parameters=175e9 --gpu A100-80 --gpus 8 --zero 3   its states alone
  hpckit plan experiment=charlm parallel=fsdp --gpu A100-80 --gpus 8   a model of your own code
  hpckit plan --from RUN --model gpt2 --gpu A100-80 --gpus 64   corrected by a run of yours
  hpckit plan --power --gpu A100-80 --gpus 10000
  hpckit plan cluster=lab --model llama3-8b --gpus 64   GPU, PUE and price of conf/cluster/lab.yaml

Nothing is submitted, and no cluster is asked. The guide says what is modelled, and what is not.
The exit code is 0 also if nothing fits: `fits` in the JSON says whether it does.
"""


_KEPT = (
    *("config_dir", "config_name", "output_dir", "model", "measured", "gpu", "gpus"),
    *("power_cap_w", "node_w_per_gpu", "vocab", "precision", "optimizer", "attention", "zero"),
    *("kernels", "loss", "tokens", "pue", "price_per_gpu_hour", "carbon_g_per_kwh"),
)
"""Options that `--search` takes as they are: the layout found is planned again with them."""
_USUAL = "as published, up to 8192; of plain numbers their positions, 2048"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    parser.register("action", None, Once)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="instead of --model: an experiment, in the words of `launch`, whose model is counted; "
        "with --model: the cluster whose facts count (cluster=SITE)",
    )
    add_configuration(parser)
    _add_machine(parser)
    _add_training(parser)
    _add_measured(parser)
    parser.add_argument("--search", action="store_true", help="find the fastest layouts that fit")
    parser.add_argument("--power", action="store_true", help="power alone, without a model")
    _add_site(parser)
    add_common(parser)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME|FILE|NUMBERS",
        help="a published model, a config.json, or numbers: 'hidden=4096 layers=32 heads=32'",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME|NUMBERS",
        help=f"one of {', '.join(GPUS)}; or one and what differs: 'A100-80 network_gb_per_s=12.5' "
        "(default: cluster.gpu)",
    )
    parser.add_argument(
        "--gpus", metavar="N", type=whole("GPUs", "16"), help="how many (default: 1)"
    )
    root = "of each GPU: it computes as the square root of its power, which is an assumption"
    parser.add_argument("--power-cap-w", metavar="W", type=float, help=root)
    sheet = "of a GPU with its part of the node (default: of the vendor's data sheet)"
    parser.add_argument("--node-w-per-gpu", metavar="W", type=float, help=sheet)


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parallel",
        metavar="KEY=N",
        nargs="+",
        action="extend",
        default=[],
        help="sizes: tensor, pipeline, context, shard, stages_per_rank; sequence=true|false. "
        "The GPUs that they do not use hold further copies of the model",
    )
    for name, of, example, what in (
        ("global-batch", "sequences", "1024", "sequences of a step (default: a small batch)"),
        ("micro-batch", "sequences", "4", "sequences that a GPU computes at once (default: 1)"),
        ("sequence", "tokens", "8192", f"tokens of a sequence (default: {_USUAL})"),
        ("vocab", "tokens", "128256", "how many tokens there are (default: the model's)"),
    ):
        parser.add_argument(f"--{name}", metavar="N", type=whole(of, example), help=what)
    _add_choice(parser, "precision", "default: bf16, or fp16 where a GPU has no bf16", NumberType)
    _add_choice(parser, "optimizer", "whose state is kept", OptimizerKind, OptimizerKind.adam)
    _add_choice(
        parser, "recompute", "what the backward pass computes again", Recomputation, type=_recompute
    )
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
    _add_choice(parser, "loss", "default: plain, as run.train_step does without loss=", LossKind)


def _add_measured(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step-s", metavar="S", type=float, help="a measured step, instead of a prediction"
    )
    parser.add_argument(
        "--from",
        dest="measured",
        metavar="RUN",
        help="a run that trained this model on GPUs: predictions are corrected by what it took",
    )
    tokens = "of the training: 1e11, or 100B (default: 20 per parameter)"
    parser.add_argument("--tokens", metavar="N", help=tokens)


def _add_choice(
    parser: argparse.ArgumentParser, name: str, what: str, of: Any, default: Any = None, **more: Any
) -> None:
    parser.add_argument(
        f"--{name}",
        choices=[choice.value for choice in of],
        default=None if default is None else default.value,
        help=what if default is None else f"{what} (default: {default.value})",
        **more,
    )


def _recompute(text: str) -> str:
    """Return what is computed again; raises ArgumentTypeError for a word of `launch`."""
    if text == "blocks":
        raise argparse.ArgumentTypeError("is blocks, as in parallel.recompute; here that is full")
    return text


def _add_site(parser: argparse.ArgumentParser) -> None:
    pue = f"the facility's power over its nodes' (default: the cluster's, or {SiteRates().pue})"
    parser.add_argument("--pue", metavar="X", type=float, help=pue)
    parser.add_argument("--price-per-gpu-hour", metavar="X", type=float, help="in any currency")
    parser.add_argument("--carbon-g-per-kwh", metavar="X", type=float, help="of the site's grid")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a plan; returns 0, also if it does not fit. Raises HpckitError."""
    check_together(arguments)
    cluster = planned_cluster(arguments, context)
    gpu, site = planned_gpu(arguments, cluster), planned_rates(arguments, cluster)
    if arguments.overrides and not only_of_cluster(arguments.overrides):
        plan = _counted(arguments, context, gpu, site)
        return _say(context, arguments, plan_object(plan), plan_text(plan))
    if arguments.power:
        draw = power_draw(gpu, CapacityRequest(gpu=gpu, gpus=_gpus(arguments)).gpus, site.pue)
        return _say(context, arguments, power_object(draw), power_text(draw))
    request = _request(arguments, context, gpu, site)
    if arguments.measured is not None:
        site_gpu = planned_gpu(arguments, cluster, option_caps=False)
        request = _calibrated(arguments, context, request, site_gpu)
    if arguments.search:
        found = find_layouts(request)
        text = search_text(found, _planned_words(arguments, context))
        return _say(context, arguments, search_object(found, request.calibration), text)
    plan = plan_capacity(request)
    return _say(context, arguments, plan_object(plan), plan_text(plan))


def _planned_words(arguments: argparse.Namespace, context: Context) -> tuple[str, ...]:
    """Return the words of this call that say nothing of the layout, its batch and sequence."""
    given = (
        (option_name(name), str(getattr(arguments, name)))
        for name in _KEPT
        if getattr(arguments, name) is not None
    )
    return (*_shown(arguments, context), *(word for pair in given for word in pair))


def _shown(arguments: argparse.Namespace, context: Context) -> tuple[str, ...]:
    """Return the overrides without secrets."""
    return masked_words(arguments.overrides, known_secrets(context.environ))


def _gpus(arguments: argparse.Namespace) -> int:
    return 1 if arguments.gpus is None else int(arguments.gpus)


def _counted(
    arguments: argparse.Namespace, context: Context, gpu: GpuSpec, site: SiteRates
) -> CapacityPlan:
    """Return the plan of an experiment, whose model is counted; raises HpckitError."""
    from hpckit.features.capacity import count_model  # noqa: PLC0415  # it imports Hydra

    ranks = () if arguments.gpus is None else count_model.rank_overrides(gpu, arguments.gpus)
    # Nothing runs: so many GPUs need not be those of the machine or the cluster here.
    anywhere = ("cluster.kind=slurm",) if ranks else ()
    request = compose_request(arguments, context, more=(*ranks, *anywhere))
    model, layout = count_model.count_model(request, context, quiet=arguments.json)
    words = count_model.launched_words(_shown(arguments, context), ranks, gpu)
    kind = OptimizerKind(arguments.optimizer)
    return count_model.plan_counted(model, layout, gpu, kind, site, words)


def _calibrated(
    arguments: argparse.Namespace, context: Context, request: CapacityRequest, site_gpu: GpuSpec
) -> CapacityRequest:
    """Return a request whose predictions follow a measured run; raises HpckitError.

    The run had the site's GPUs as they are, not with the cap that --power-cap-w tries.
    """
    for name in ("step_s", "zero"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                f"{option_name(name)} does not go with --from: "
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
    found = calibrate(replace(request, gpu=site_gpu), run)
    return replace(like_run(request, run, gpus=arguments.gpus), calibration=found)


def _say(context: Context, arguments: argparse.Namespace, found: dict[str, Any], text: str) -> int:
    if arguments.json:
        context.say_json(found)
    else:
        context.say(text)
    return 0


def _request(
    arguments: argparse.Namespace, context: Context, gpu: GpuSpec, site: SiteRates
) -> CapacityRequest:
    same = (
        *("model", "parallel", "global_batch", "micro_batch", "sequence", "vocab"),
        *("zero", "step_s"),
    )
    return CapacityRequest(
        **{name: getattr(arguments, name) for name in same},
        gpu=gpu,
        gpus=_gpus(arguments),
        config=read_config(arguments.model, context),
        precision=arguments.precision and NumberType(arguments.precision),
        optimizer=OptimizerKind(arguments.optimizer),
        recompute=arguments.recompute and Recomputation(arguments.recompute),
        attention=arguments.attention and AttentionKind(arguments.attention),
        fused=arguments.kernels == "fused",
        loss=arguments.loss and LossKind(arguments.loss),
        tokens=None if arguments.tokens is None else read_count("--tokens ", arguments.tokens),
        site=site,
        cluster_words=_shown(arguments, context),
    )
