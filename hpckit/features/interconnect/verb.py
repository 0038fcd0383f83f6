"""`hpckit bench comm`: measures what ranks can send each other, and judges it.

It is a launch of its own: its words are those of `hpckit launch`.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from hpckit.cli.compose_options import add_config_source_options
from hpckit.cli.options import add_common_options
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.features.interconnect.model import (
    SMALLEST,
    CommBenchRequest,
    CommOperation,
    SearchMode,
    check_time_bound,
    parse_operations,
    parse_size_range,
)
from hpckit.features.interconnect.text import (
    build_bandwidth_latency_figure,
    interconnect_to_json,
    render_interconnect_page,
)
from hpckit.features.reporting.drawing import FigureLook, draw_figure, parse_figure_file_format
from hpckit.operations.output_file import FIGURE, check_output_file, write_output_file

EPILOG = """\
examples:
  hpckit bench comm cluster=lab resources.nodes=4 resources.gpus_per_node=8
  hpckit bench comm cluster=local resources=cpu_pair --time-s 10
  hpckit bench comm cluster=lab resources.nodes=16 --find-slow pairs -o network.pdf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    parser.add_argument(
        "kind",
        metavar="KIND",
        choices=["comm"],
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
        choices=[mode.value for mode in SearchMode],
        default=SearchMode.auto.value,
        help="search for a slow node or link: all pairs of nodes, or halves of them (default: "
        "auto, if more than two nodes are below what their links promise)",
    )
    parser.add_argument(*("-o", "--to"), metavar="FILE", help="also draw a figure: .pdf, .svg or .png")
    add_config_source_options(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Measure and print; returns 1 if something is surely wrong, else 0. Raises HpckitError."""
    smallest, largest = (SMALLEST, None) if arguments.sizes is None else parse_size_range(arguments.sizes)
    asked = CommBenchRequest(
        operations=parse_operations(arguments.ops),
        smallest=smallest,
        largest=largest,
        time_s=check_time_bound(arguments.time_s),
        search=SearchMode(arguments.find_slow),
    )
    target = None if arguments.to is None else context.cwd / Path(arguments.to).expanduser()
    if target is not None:  # before anything is launched
        look = FigureLook(form=parse_figure_file_format(target), log=True, log_x=True)
        check_output_file(target, FIGURE)
    # Imports Hydra, which --help does not need.
    done = import_module("hpckit.features.interconnect.launch").run_bench(arguments, asked, context)
    if done is None:
        return UsageError.exit_code
    measured, shape, verdict = done
    if arguments.json:
        context.say_json(interconnect_to_json(measured, shape, verdict))
    else:
        show_page(render_interconnect_page(measured, verdict), context)
    if target is not None:
        figure = draw_figure(build_bandwidth_latency_figure(measured), look)
        try:
            write_output_file(target, (figure,), FIGURE)
        except UsageError as error:  # 2 would say that nothing was done
            raise RunError(error.message, hint=error.hint) from error
        context.note(f"drew bandwidth and time to {target}")
    return int(any(finding.is_error for finding in verdict.findings))
