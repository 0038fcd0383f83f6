"""The GPU and the rates of a site for `hpckit plan`: of options, else of the cluster's facts."""

from __future__ import annotations

import argparse
from dataclasses import replace

from hpckit.cli.compose_options import compose_request
from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.launch import Cluster
from hpckit.planning.capacity.gpu_catalogue import GPUS
from hpckit.planning.capacity.gpus import read_gpu
from hpckit.planning.capacity.power import SiteRates, capped, with_node


def planned_cluster(arguments: argparse.Namespace, context: Context) -> Cluster:
    """Return the facts of the cluster that the words choose; raises ConfigError.

    Nothing is known of it if a GPU is given and no word: then no configuration is read.
    """
    if arguments.gpu is not None and not arguments.overrides:
        return Cluster()
    from hpckit.operations.capacity import cluster_facts  # noqa: PLC0415  # it imports Hydra

    return cluster_facts.read_cluster(compose_request(arguments, context))


def planned_gpu(arguments: argparse.Namespace, cluster: Cluster) -> GpuSpec:
    """Return the GPU, with its power cap and its part of a node; raises UsageError."""
    text = cluster.gpu if arguments.gpu is None else arguments.gpu
    if text is None:
        raise UsageError(
            "--gpu is missing, and cluster.gpu is not set",
            hint=f"name one of {', '.join(GPUS)}; what your cluster has can stand in its file "
            "(conf/cluster/SITE.yaml: gpu: A100-80)",
        )
    try:
        gpu = read_gpu(text)
    except ConfigError as error:
        if arguments.gpu is not None:
            raise
        raise ConfigError(f"cluster.gpu: {error.message}", hint=error.hint) from error
    cap = arguments.power_cap_w
    if cap is None and cluster.power_cap_w is not None:
        # A cap above what a GPU takes caps nothing.
        cap = min(cluster.power_cap_w, gpu.power_w)
    if cap is not None:
        gpu = capped(gpu, cap)
    return gpu if arguments.node_w_per_gpu is None else with_node(gpu, arguments.node_w_per_gpu)


def planned_rates(arguments: argparse.Namespace, cluster: Cluster) -> SiteRates:
    """Return PUE and prices; raises ConfigError. A PUE of 1 is one that nobody has set."""
    usual = SiteRates()
    own = {
        "pue": cluster.pue if cluster.pue > 1 else usual.pue,
        "price_per_gpu_hour": cluster.price_per_gpu_hour,
        "carbon_g_per_kwh": cluster.carbon_g_per_kwh,
    }
    given = {name: getattr(arguments, name) for name in own if getattr(arguments, name) is not None}
    return replace(usual, **own | given)
