"""`hpckit node-facts`: what the run of `hpckit doctor --env` does on its node.

Hidden from `--help`: it only works inside that run.
"""

from __future__ import annotations

import argparse

from hpckit.context import Context
from hpckit.operations.environment.node import write_node_facts


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: the run's variables say all."""


def run(_arguments: argparse.Namespace, context: Context) -> int:
    """Write the facts of this node into the run's folder."""
    write_node_facts(context)
    return 0
