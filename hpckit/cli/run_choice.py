"""The arguments by which `resume` and `rerun` choose runs of one launch.

The meaning of the filters is in report/run_filter.
"""

from __future__ import annotations

import argparse

from hpckit.cli.options import add_filter_options, build_filter, choose_output_dir
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.parallel.settings import looks_like_override
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch
from hpckit.record.lookup import find_launch_or_run
from hpckit.report.run_filter import RunFilter, parse_failure_causes, parse_run_indices


def add_run_choice_arguments(parser: argparse.ArgumentParser, *, also: str = "") -> None:
    """Add LAUNCH or several RUNs, and the filters; `also` is what else the words may be."""
    parser.add_argument(
        "references",
        nargs="*",
        metavar="LAUNCH|RUN",
        help="a launch, or runs of one: id, beginning of one, name, .3, @-2, or folder (default: "
        f"latest launch){also}",
    )
    add_filter_options(parser)
    parser.add_argument(
        "--cause",
        metavar="CAUSE[,CAUSE]",
        action="append",
        default=[],
        help="only runs that failed for one of these causes, such as nan or hang; a word of a "
        "name is enough: oom",
    )
    parser.add_argument("--runs", metavar="RANGES", help="only these runs of the launch, such as 3-7,12")


_SLURM_LIST = lazy_pattern(
    r"^(\+*(?:resources|cluster)\.(?:partition|account|qos|constraint|nodelist|exclude|gres"
    r"|reservation|dependency|mail_type|mail_user|additional_parameters\.\w+)=)([^'\"{}$]*,[^'\"{}$]*)$"
)


def extract_overrides(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Take the overrides out of the words of `add_run_choice_arguments`, and return them.

    A run has one value of each: commas of Slurm's lists get their quotes.
    """
    overrides = tuple(reference for reference in arguments.references if looks_like_override(reference))
    arguments.references = [reference for reference in arguments.references if reference not in overrides]
    return tuple(_SLURM_LIST.sub(r"\1'\2'", override) for override in overrides)


def choose_runs(
    arguments: argparse.Namespace, context: Context
) -> tuple[Launch, tuple[int, ...] | None, RunFilter]:
    """Return the launch, the runs that are named (None if none is), and the filters.

    Raises UsageError.
    """
    basic, causes = build_filter(arguments), parse_failure_causes(arguments.cause)
    launch, named = _find_named_runs(arguments, context)
    indices = None
    if arguments.runs is not None:
        indices = parse_run_indices(arguments.runs, len(launch.runs), launch.id)
    wanted = RunFilter(basic=basic, causes=causes, indices=indices, words=_format_filter_options(arguments))
    return launch, named, wanted


def _find_named_runs(
    arguments: argparse.Namespace, context: Context
) -> tuple[Launch, tuple[int, ...] | None]:
    base = choose_output_dir(arguments, context)
    first, *others = [
        find_launch_or_run(word, base, cwd=context.cwd) for word in arguments.references or [None]
    ]
    if not others:
        return first.launch, first.indices
    launches = {selection.launch.folder.resolve(): selection.launch.id for selection in (first, *others)}
    if len(launches) > 1:
        raise UsageError(
            f"these are runs of {len(launches)} launches: {', '.join(launches.values())}",
            hint="name runs of one launch at a time",
        )
    indices = [selection.index for selection in (first, *others) if selection.index is not None]
    if len(indices) <= len(others):
        raise UsageError(
            f"{first.launch.id} is named as a whole, and more than once",
            hint=f"name the launch alone, or runs of it, such as {first.launch.runs[0].id}",
        )
    return first.launch, tuple(sorted(set(indices)))


def _format_filter_options(arguments: argparse.Namespace) -> str:
    words = [f"--state {state}" for state in arguments.state]
    words += ["--failed"] if arguments.failed else []
    words += [f"--override {word}" for word in arguments.override]
    words += [f"--cause {cause}" for cause in arguments.cause]
    return " ".join(words if arguments.runs is None else [*words, f"--runs {arguments.runs}"])
