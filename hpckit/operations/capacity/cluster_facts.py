"""Reads the facts of the cluster that a launch with some words would go to. Imports Hydra."""

from __future__ import annotations

from hpckit.config.compose import compose
from hpckit.config.request import ComposeRequest, with_something_to_run
from hpckit.model.launch import Cluster
from hpckit.planning.checks.values import check_cluster


def read_cluster(request: ComposeRequest) -> Cluster:
    """Return the section `cluster` of the configuration; raises ConfigError."""
    cluster = compose(with_something_to_run(request))[0].settings.cluster
    check_cluster(cluster)
    return cluster
