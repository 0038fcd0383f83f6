"""`hpckit bench comm`: measures what ranks can send each other, and judges it.

It is a launch of its own: its words are those of `hpckit launch`.
"""

from __future__ import annotations

import argparse
from enum import StrEnum
from importlib import import_module

from hpckit.cli.compose_options import add_configuration
from hpckit.cli.options import add_json, add_output_dir
from hpckit.context import Context
from hpckit.features.interconnect.model_measurement import CommOperation, SearchMode

EPILOG = """\
examples:
  hpckit bench comm cluster=lab resources.nodes=4 resources.gpus_per_node=8
  hpckit bench comm cluster=local resources=cpu_pair --time-s 10
  hpckit bench comm cluster=lab resources.nodes=16 --find-slow pairs -o network.pdf
"""


class BenchKind(StrEnum):
    """What can be measured."""

    comm = "comm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    parser.add_argument(
        "kind",
        metavar="KIND",
        choices=[one.value for one in BenchKind],
        help="comm: communication between ranks, and between host and GPU",
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="OVERRIDE", help="as for `launch`: resources …"
    )
    parser.add_argument(
        "--sizes",
        metavar="FROM:TO",
        help="bytes of an array or message, doubled (default: 1KiB to 4GiB, on CPUs to 64MiB)",
    )
    parser.add_argument(
        "--ops",
        metavar="NAME,...",
        action="append",
        default=[],
        help=f"some of {', '.join(CommOperation)} (default: all)",
    )
    parser.add_argument(
        "--time-s",
        metavar="N",
        type=float,
        default=60.0,
        help="seconds of all operations; a search takes half as many more (default: 60)",
    )
    parser.add_argument(
        "--find-slow",
        choices=[one.value for one in SearchMode],
        default=SearchMode.auto.value,
        help="search for a slow node or link: all pairs of nodes, or halves of them (default: "
        "auto, if more than two nodes are below what their links promise)",
    )
    parser.add_argument(
        *("-o", "--to"), metavar="FILE", help="also draw a figure: .pdf, .svg or .png"
    )
    add_configuration(parser)
    add_json(parser)
    add_output_dir(parser)
    parser.set_defaults(command=None, multirun=False, cfg=None, info=None)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Measure and print; returns 1 if something is surely wrong, else 0. Raises HpckitError."""
    # Imports Hydra, which --help does not need.
    code: int = import_module("hpckit.features.interconnect.show").show_bench(arguments, context)
    return code
