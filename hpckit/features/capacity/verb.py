"""`hpckit plan`: what training a model will need, before anything waits in a queue."""

from __future__ import annotations

import argparse
from typing import Any

from hpckit.cli.compose_options import add_config_source_options, build_compose_request
from hpckit.cli.options import add_common_options, choose_output_dir, whole_number_type
from hpckit.cli.parsing import Once
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.capacity.calibrate import (
    compare_predictions_with_run,
    fill_request_from_run,
    read_measured_run,
)
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.machine import layout_search_to_json, plan_to_json, power_to_json
from hpckit.features.capacity.model_plan import CapacityPlan
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    GpuSpec,
    LossKind,
    NumberType,
    OptimizerKind,
    Recomputation,
)
from hpckit.features.capacity.power import SiteRates, estimate_power_draw
from hpckit.features.capacity.request import CapacityRequest, plan_capacity
from hpckit.features.capacity.search import search_layouts
from hpckit.features.capacity.text import format_plan, format_power_draw, format_search_result
from hpckit.features.capacity.verb_words import (
    build_planned_gpu,
    build_site_rates,
    chooses_only_cluster,
    compose_chosen_cluster,
    format_option_name,
    read_model_config,
    refuse_conflicting_options,
)
from hpckit.features.capacity.words import parse_count
from hpckit.planning.secrecy import find_secrets_in_environment, mask_command_line
from hpckit.record.lookup import find_launch_of_any_owner
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
    add_config_source_options(parser)
    _add_model_and_gpu_options(parser)
    _add_training_options(parser)
    _add_measured_options(parser)
    parser.add_argument("--search", action="store_true", help="find the fastest layouts that fit")
    parser.add_argument("--power", action="store_true", help="power alone, without a model")
    _add_site_options(parser)
    add_common_options(parser)


def _add_model_and_gpu_options(parser: argparse.ArgumentParser) -> None:
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
        "--gpus", metavar="N", type=whole_number_type("GPUs", "16"), help="how many (default: 1)"
    )
    root = "cap of each GPU; its speed is assumed to follow the square root of its power"
    parser.add_argument("--power-cap-w", metavar="W", type=float, help=root)
    sheet = "power of a GPU and its part of the node (default: from the vendor's data sheet)"
    parser.add_argument("--node-w-per-gpu", metavar="W", type=float, help=sheet)


def _add_training_options(parser: argparse.ArgumentParser) -> None:
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
        parser.add_argument(f"--{name}", metavar="N", type=whole_number_type(of, example), help=what)
    _add_choice_option(parser, "precision", "default: bf16, or fp16 where a GPU has no bf16", NumberType)
    _add_choice_option(parser, "optimizer", "whose state is kept", OptimizerKind, OptimizerKind.adam)
    _add_choice_option(
        parser, "recompute", "what the backward pass computes again", Recomputation, type=_parse_recompute
    )
    _add_choice_option(parser, "attention", "default: eager for a GPT, else flash", AttentionKind)
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
    _add_choice_option(parser, "loss", "default: plain, as run.train_step does without loss=", LossKind)


def _add_measured_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step-s", metavar="S", type=float, help="a measured step, instead of a prediction")
    parser.add_argument(
        "--from",
        dest="measured",
        metavar="RUN",
        help="a run that trained this model on GPUs: its measured step and memory correct the predictions",
    )
    tokens = "tokens of the training: 1e11, or 100B (default: 20 per parameter)"
    parser.add_argument("--tokens", metavar="N", help=tokens)


def _add_choice_option(
    parser: argparse.ArgumentParser, name: str, what: str, of: Any, default: Any = None, **more: Any
) -> None:
    parser.add_argument(
        f"--{name}",
        choices=[choice.value for choice in of],
        default=None if default is None else default.value,
        help=what if default is None else f"{what} (default: {default.value})",
        **more,
    )


def _parse_recompute(text: str) -> str:
    """Return what is computed again; raises ArgumentTypeError for a word of `launch`."""
    if text == "blocks":
        raise argparse.ArgumentTypeError("blocks is a word of `launch`; here that is full")
    return text


def _add_site_options(parser: argparse.ArgumentParser) -> None:
    pue = f"the facility's power over its nodes' (default: the cluster's, or {SiteRates().pue})"
    parser.add_argument("--pue", metavar="X", type=float, help=pue)
    parser.add_argument("--price-per-gpu-hour", metavar="X", type=float, help="in any currency")
    parser.add_argument("--carbon-g-per-kwh", metavar="X", type=float, help="of the site's grid")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a plan; returns 0, also if it does not fit. Raises HpckitError."""
    refuse_conflicting_options(arguments)
    cluster = compose_chosen_cluster(arguments, context)
    gpu, site = build_planned_gpu(arguments, cluster), build_site_rates(arguments, cluster)
    if arguments.overrides and not chooses_only_cluster(arguments.overrides):
        plan = _plan_experiment(arguments, context, gpu, site)
        return _print_answer(context, arguments, plan_to_json(plan), format_plan(plan))
    if arguments.power:
        draw = estimate_power_draw(
            gpu, CapacityRequest(gpu=gpu, gpus=_read_gpu_count_option(arguments)).gpus, site.pue
        )
        return _print_answer(context, arguments, power_to_json(draw), format_power_draw(draw))
    request = _build_request(arguments, context, gpu, site)
    if arguments.measured is not None:
        site_gpu = build_planned_gpu(arguments, cluster, option_caps=False)
        request = _calibrate_request(arguments, context, request, site_gpu)
    if arguments.search:
        found = search_layouts(request)
        text = format_search_result(found, _list_words_to_plan_again(arguments, context))
        return _print_answer(context, arguments, layout_search_to_json(found, request.calibration), text)
    plan = plan_capacity(request)
    return _print_answer(context, arguments, plan_to_json(plan), format_plan(plan))


def _list_words_to_plan_again(arguments: argparse.Namespace, context: Context) -> tuple[str, ...]:
    """Return the words of this call that say nothing of the layout, its batch and sequence."""
    given = (
        (format_option_name(name), str(getattr(arguments, name)))
        for name in _KEPT
        if getattr(arguments, name) is not None
    )
    return (*_mask_secrets(arguments, context), *(word for pair in given for word in pair))


def _mask_secrets(arguments: argparse.Namespace, context: Context) -> tuple[str, ...]:
    return mask_command_line(arguments.overrides, find_secrets_in_environment(context.environ))


def _read_gpu_count_option(arguments: argparse.Namespace) -> int:
    return 1 if arguments.gpus is None else int(arguments.gpus)


def _plan_experiment(
    arguments: argparse.Namespace, context: Context, gpu: GpuSpec, site: SiteRates
) -> CapacityPlan:
    """Return the plan of an experiment, whose model is counted; raises HpckitError."""
    from hpckit.features.capacity import count_model  # noqa: PLC0415  # it imports Hydra

    ranks = () if arguments.gpus is None else count_model.build_node_and_task_overrides(gpu, arguments.gpus)
    # Nothing runs: so many GPUs need not be those of the machine or the cluster here.
    anywhere = ("cluster.kind=slurm",) if ranks else ()
    request = build_compose_request(arguments, context, more=(*ranks, *anywhere))
    model, layout = count_model.build_and_count_experiment_model(request, context, quiet=arguments.json)
    words = count_model.build_launch_overrides(_mask_secrets(arguments, context), ranks, gpu)
    kind = OptimizerKind(arguments.optimizer)
    return count_model.plan_states_of_counted_model(model, layout, gpu, kind, site, words)


def _calibrate_request(
    arguments: argparse.Namespace, context: Context, request: CapacityRequest, site_gpu: GpuSpec
) -> CapacityRequest:
    """Return a request whose predictions follow a measured run; raises HpckitError.

    The run had the site's GPUs as they are, not with the cap that --power-cap-w tries.
    """
    for name in ("step_s", "zero"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                f"{format_option_name(name)} does not go with --from: "
                + ("the step is predicted" if name == "step_s" else "no run of hpckit has ZeRO"),
                hint="leave one of the two out",
            )
    selection = find_launch_of_any_owner(
        arguments.measured, choose_output_dir(arguments, context), cwd=context.cwd
    )
    launch, index = selection.launch, selection.index
    if index is None and len(launch.runs) > 1:
        raise UsageError(
            f"--from {arguments.measured}: {launch.id} has {len(launch.runs)} runs",
            hint=f"name one, such as --from {launch.id}.0",
        )
    run = read_measured_run(launch, index or 0)
    found = compare_predictions_with_run(replace(request, gpu=site_gpu), run)
    return replace(fill_request_from_run(request, run, gpus=arguments.gpus), calibration=found)


def _print_answer(context: Context, arguments: argparse.Namespace, found: dict[str, Any], text: str) -> int:
    if arguments.json:
        context.say_json(found)
    else:
        context.say(text)
    return 0


def _build_request(
    arguments: argparse.Namespace, context: Context, gpu: GpuSpec, site: SiteRates
) -> CapacityRequest:
    same = (*("model", "parallel", "global_batch", "micro_batch", "sequence", "vocab"), *("zero", "step_s"))
    return CapacityRequest(
        **{name: getattr(arguments, name) for name in same},
        gpu=gpu,
        gpus=_read_gpu_count_option(arguments),
        config=read_model_config(arguments.model, context),
        precision=arguments.precision and NumberType(arguments.precision),
        optimizer=OptimizerKind(arguments.optimizer),
        recompute=arguments.recompute and Recomputation(arguments.recompute),
        attention=arguments.attention and AttentionKind(arguments.attention),
        fused=arguments.kernels == "fused",
        loss=arguments.loss and LossKind(arguments.loss),
        tokens=None if arguments.tokens is None else parse_count("--tokens ", arguments.tokens),
        site=site,
        cluster_words=_mask_secrets(arguments, context),
    )
