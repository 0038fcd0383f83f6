"""The GPU and the rates of a site for `hpckit plan`: of options, else of the cluster's facts."""

from __future__ import annotations

import argparse

from hpckit.cli.compose_options import compose_request
from hpckit.config.request import with_something_to_run
from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.counted import counted
from hpckit.model.launch import Cluster
from hpckit.planning.capacity.gpu_catalogue import GPUS
from hpckit.planning.capacity.gpus import LINKED, read_gpu
from hpckit.planning.capacity.power import SiteRates, capped, with_node
from hpckit.planning.capacity.request import STATES
from hpckit.planning.checks.values import check_cluster
from hpckit.values import replace


def planned_cluster(arguments: argparse.Namespace, context: Context) -> Cluster:
    """Return the facts of the cluster that the words choose; raises ConfigError.

    Nothing is known of it if a GPU is given and no word: then no configuration is read.
    """
    if arguments.gpu is not None and not arguments.overrides:
        return Cluster()
    from hpckit.config.compose import compose  # noqa: PLC0415  # it imports Hydra

    request = with_something_to_run(compose_request(arguments, context))
    cluster = compose(request)[0].settings.cluster
    check_cluster(cluster)
    return cluster


def planned_gpu(
    arguments: argparse.Namespace, cluster: Cluster, *, option_caps: bool = True
) -> GpuSpec:
    """Return the GPU, with its power cap and its part of a node; raises UsageError.

    Without `option_caps` as it is on the cluster, whatever --power-cap-w says.
    """
    text = cluster.gpu if arguments.gpu is None else arguments.gpu
    if text is None:
        raise UsageError(
            "--gpu is missing, and cluster.gpu is not set",
            hint=f"name one of {', '.join(GPUS)}; what your cluster has can stand in its file "
            "(conf/cluster/SITE.yaml: gpu: A100-80)",
        )
    try:
        gpu = _in_nodes(read_gpu(text), text, cluster)
    except ConfigError as error:
        if arguments.gpu is not None:
            raise
        raise ConfigError(f"cluster.gpu: {error.message}", hint=error.hint) from error
    cap = arguments.power_cap_w if option_caps else None
    if cap is not None:
        gpu = capped(gpu, cap)
    elif cluster.power_cap_w is not None and cluster.power_cap_w < gpu.power_w:
        try:
            gpu = capped(gpu, cluster.power_cap_w)
        except ConfigError as error:
            raise ConfigError(f"cluster.power_cap_w: {error.message}", hint=error.hint) from error
    return gpu if arguments.node_w_per_gpu is None else with_node(gpu, arguments.node_w_per_gpu)


def _in_nodes(gpu: GpuSpec, text: str, cluster: Cluster) -> GpuSpec:
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
            f"{counted(cluster.nvlink_nodes, 'node')} join (cluster.nvlink_nodes)",
            hint=f"leave {LINKED} out: it is {joined} here",
        )
    return replace(gpu, per_node=per_node)


def planned_rates(arguments: argparse.Namespace, cluster: Cluster) -> SiteRates:
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
