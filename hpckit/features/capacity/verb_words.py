"""What the words of `hpckit plan` say: which do not go together, the file of a model, the site.

The GPU and the rates of a site are those of options, else of the cluster's facts.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpckit.cli.compose_options import build_compose_request
from hpckit.config.request import add_placeholder_command
from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.features.capacity.gpus import GPUS, LINKED, parse_gpu
from hpckit.features.capacity.model_setup import GpuSpec
from hpckit.features.capacity.power import SiteRates, cap_gpu_power, set_node_power
from hpckit.features.capacity.presets import MODELS, build_unknown_model_error
from hpckit.features.capacity.request import STATES
from hpckit.model.counted import format_count
from hpckit.model.launch import Cluster
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.values import check_cluster_values
from hpckit.record.store import open_regular_file
from hpckit.values import replace

_LARGEST_CONFIG = 4_000_000
_NUMBER_WORD = lazy_pattern(r"[KMBT]|thousand|million|billion|trillion", re.IGNORECASE)
_SHAPE_WORD = lazy_pattern(r"(layers|heads|kv_heads|head_dim|ffn|vocab|swiglu|positions)=\S+")
_GPU_WORD = lazy_pattern(r"[a-z0-9_]+_(gib|per_s|w|per_link|fp32)=\S+|tflops=\S+")
_OF_SHAPES = (
    *("model", "parallel", "global_batch", "micro_batch", "sequence", "vocab", "precision"),
    *("recompute", "attention", "zero", "step_s", "measured", "tokens", "search", "power"),
)
"""Options that need a transformer's shape, or that an experiment says itself."""
_OF_TIMES = ("price_per_gpu_hour", "carbon_g_per_kwh")
_OF_PLANS = (*(word for word in _OF_SHAPES if word != "power"), *_OF_TIMES)
_CLUSTER = lazy_pattern(r"\+{0,2}cluster[.=]")
_RANKS = ("resources.nodes=", "resources.tasks_per_node=", "resources.gpus_per_node=")


def format_option_name(name: str) -> str:
    """Return the option of an argument: `--from` for `measured`."""
    return "--from" if name == "measured" else f"--{name.replace('_', '-')}"


def list_given_arguments(arguments: argparse.Namespace, names: tuple[str, ...]) -> Iterator[str]:
    """Yield those of these arguments that were given."""
    for name in names:
        value = getattr(arguments, name)
        # 0 is a value that may have been given, and equals False.
        if value is not None and value is not False and value != []:
            yield name


def refuse_conflicting_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that say nothing beside the others."""
    words = arguments.overrides
    if words and not chooses_only_cluster(words):
        _refuse_split_values(arguments, words)
        _refuse_options_beside_experiment(arguments, words)
    elif arguments.power:
        for name in list_given_arguments(arguments, _OF_PLANS):
            raise UsageError(
                f"{format_option_name(name)} does not go with --power, which is power alone",
                hint="leave one of the two out: the plan of a model also shows its power",
            )
    elif arguments.model is None:
        raise UsageError("--model is missing", hint="name a model; --power alone needs none")


def chooses_only_cluster(words: Sequence[str]) -> bool:
    """Return whether words choose a cluster and nothing else: a model may stand beside them."""
    return bool(words) and all(_CLUSTER.match(word) for word in words)


def _refuse_split_values(arguments: argparse.Namespace, words: list[str]) -> None:
    """Raise UsageError for a word that was cut off an option's value by a space."""
    if arguments.tokens is not None and _NUMBER_WORD.fullmatch(words[0]):
        raise UsageError(
            f"--tokens {arguments.tokens} {words[0]} are two words",
            hint=f"write number and suffix as one: --tokens {arguments.tokens}{words[0][0].upper()}",
        )
    if arguments.model is None and words[0].lower() in MODELS:
        raise UsageError(
            f"{words[0]} is a model, not a configuration override",
            hint=f"name it with an option: hpckit plan --model {words[0]} --gpu NAME --gpus N",
        )
    shape = arguments.model if "=" in (arguments.model or "") else None
    for option, given, form in (("gpu", arguments.gpu, _GPU_WORD), ("model", shape, _SHAPE_WORD)):
        if given is not None and form.fullmatch(words[0]):
            raise UsageError(
                f"{words[0]} is not a part of --{option}, which is one word",
                hint=f"put the numbers in quotes: --{option} '{' '.join([given, *words])}'",
            )


def _refuse_options_beside_experiment(arguments: argparse.Namespace, every: list[str]) -> None:
    words = [word for word in every if not _CLUSTER.match(word)]
    for names, why in (
        (_OF_SHAPES, "the experiment says what its model and its layout are"),
        (_OF_TIMES, "for a counted model, states are known and the time is not"),
    ):
        for name in list_given_arguments(arguments, names):
            raise UsageError(
                f"{format_option_name(name)} does not go with {words[0]}: {why}",
                hint="leave it out, or describe the model with --model instead of an experiment",
            )
    ranks = [word for word in words if word.startswith(_RANKS)]
    if arguments.gpus is not None and ranks:
        raise UsageError(
            f"--gpus {arguments.gpus} and {ranks[0]} both say how many ranks there are",
            hint="give one of them",
        )


def read_model_config(model: str, context: Context) -> dict[str, Any] | None:
    """Return what a model's configuration file says, if a file is meant; raises HpckitError.

    A folder is one that has a config.json.
    """
    path = context.cwd / Path(model)
    hint = "name a model's config.json, or the folder that has it"
    known = "=" in model or model.lower() in MODELS
    if not (model.endswith(".json") or "/" in model) and (known or not path.is_dir()):
        return None
    try:
        path = path / "config.json" if path.is_dir() else path
        with open_regular_file(path) as file:
            data = file.read(_LARGEST_CONFIG + 1)
    except OSError as error:
        of_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.endswith(".json")
        if of_hub and isinstance(error, FileNotFoundError):
            raise build_unknown_model_error(model) from error
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path!s:.200} is not a path", hint=hint) from error
    if len(data) > _LARGEST_CONFIG:
        raise UsageError(f"{path} is larger than {_LARGEST_CONFIG // 1_000_000} MB", hint=hint)
    return _parse_json_object(path, data, hint)


def _parse_json_object(path: Path, data: bytes, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", hint=hint) from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}", hint=hint
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a JSON object", hint=hint)
    return found


def compose_chosen_cluster(arguments: argparse.Namespace, context: Context) -> Cluster:
    """Return the facts of the cluster that the words choose; raises ConfigError.

    Nothing is known of it if a GPU is given and no word: then no configuration is read.
    """
    if arguments.gpu is not None and not arguments.overrides:
        return Cluster()
    from hpckit.config.compose import compose_sweep_points  # noqa: PLC0415  # it imports Hydra

    request = add_placeholder_command(build_compose_request(arguments, context))
    cluster = compose_sweep_points(request)[0].settings.cluster
    check_cluster_values(cluster)
    return cluster


def build_planned_gpu(
    arguments: argparse.Namespace, cluster: Cluster, *, option_caps: bool = True
) -> GpuSpec:
    """Return the GPU, with its power cap and its part of a node; raises UsageError.

    Without `option_caps` as it is on the cluster, whatever --power-cap-w says.
    """
    text = cluster.gpu if arguments.gpu is None else arguments.gpu
    if text is None:
        raise UsageError(
            "--gpu is missing, and cluster.gpu is not set",
            hint=f"name one of {', '.join(GPUS)}, or set it in the file of your cluster "
            "(conf/cluster/SITE.yaml: gpu: A100-80)",
        )
    try:
        gpu = _set_gpus_per_node(parse_gpu(text), text, cluster)
    except ConfigError as error:
        if arguments.gpu is not None:
            raise
        raise ConfigError(f"cluster.gpu: {error.message}", hint=error.hint) from error
    cap = arguments.power_cap_w if option_caps else None
    if cap is not None:
        gpu = cap_gpu_power(gpu, cap)
    elif cluster.power_cap_w is not None and cluster.power_cap_w < gpu.power_w:
        try:
            gpu = cap_gpu_power(gpu, cluster.power_cap_w)
        except ConfigError as error:
            raise ConfigError(f"cluster.power_cap_w: {error.message}", hint=error.hint) from error
    return gpu if arguments.node_w_per_gpu is None else set_node_power(gpu, arguments.node_w_per_gpu)


def _set_gpus_per_node(gpu: GpuSpec, text: str, cluster: Cluster) -> GpuSpec:
    """Return the GPU in nodes of this cluster; raises ConfigError if its link joins more."""
    per_node = cluster.gpus_per_node
    if not per_node:
        return gpu
    joined = per_node * cluster.nvlink_nodes
    if f" {LINKED}=" not in f" {text}":
        gpu = replace(gpu, domain=joined)
    elif gpu.domain > joined:
        raise ConfigError(
            f"{LINKED}={gpu.domain}, and a node has {per_node} GPUs (cluster.gpus_per_node), which "
            f"{format_count(cluster.nvlink_nodes, 'node')} join (cluster.nvlink_nodes)",
            hint=f"leave {LINKED} out: it is {joined} here",
        )
    return replace(gpu, per_node=per_node)


def build_site_rates(arguments: argparse.Namespace, cluster: Cluster) -> SiteRates:
    """Return PUE and prices; raises ConfigError.

    Where the time is not known, as of a number of parameters, prices of the cluster say nothing.
    """
    usual, states = SiteRates(), (arguments.model or "").startswith(STATES)
    own: dict[str, float | None] = {
        "pue": usual.pue if cluster.pue is None else cluster.pue,
        "price_per_gpu_hour": None if states else cluster.price_per_gpu_hour,
        "carbon_g_per_kwh": None if states else cluster.carbon_g_per_kwh,
    }
    given = {name: getattr(arguments, name) for name in own if getattr(arguments, name) is not None}
    return replace(usual, **own | given)
