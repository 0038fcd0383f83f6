"""Whether this machine and the compute node agree: versions, the output folder, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.environment.comparison import EnvironmentComparison
from hpckit.model.environment.facts import EnvironmentFacts
from hpckit.model.environment.roles import FolderRole
from hpckit.model.finding import Finding, error, warning

MOST_OFFSET_S = 2.0
"""Times of events on several nodes are compared; NTP keeps clocks within milliseconds."""


def side_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what differs between both machines, and must not; nothing of one machine alone."""
    if comparison.node is None:
        return
    yield from _versions(comparison.here, comparison.node, own=comparison.asked.own_python)
    yield from _token(comparison, comparison.node)
    yield from _clock(comparison, comparison.node)


def _versions(here: EnvironmentFacts, node: EnvironmentFacts, *, own: bool) -> Iterator[Finding]:
    if here.python.hpckit != node.python.hpckit:
        yield error(
            "hpckit",
            node.python.hpckit,
            f"hpckit is {here.python.hpckit} here and {node.python.hpckit} on {node.host}: what "
            "one version freezes the other one reads",
            f"install the same version for {node.python.executable}",
        )
    if own:  # cluster.python names another one on purpose
        return
    if here.python.version != node.python.version:
        yield warning(
            "Python",
            node.python.version,
            f"{node.python.executable} is Python {node.python.version} on {node.host} and "
            f"{here.python.version} here: the path is another installation there",
            "name one that all nodes share: cluster.python=/path/to/python",
        )
    if here.torch.version and node.torch.version and here.torch.version != node.torch.version:
        yield warning(
            "torch",
            node.torch.version,
            f"torch is {node.torch.version} on {node.host} and {here.torch.version} here; runs "
            f"use that of {node.host}",
            "share one environment between nodes, or name it: cluster.python=/path/to/python",
        )


def _token(comparison: EnvironmentComparison, node: EnvironmentFacts) -> Iterator[Finding]:
    if comparison.token is None or node.token == comparison.token:
        return
    found = node.file_system(FolderRole.output)
    path = "the output folder" if found is None else found.path
    yield error(
        FolderRole.output,
        path,
        f"{path} on {node.host} is not the folder of that name here: a file that was written "
        "here cannot be read there",
        "choose a folder on a file system that all nodes see: output_dir, or $HPCKIT_OUTPUTS",
    )


def _clock(comparison: EnvironmentComparison, node: EnvironmentFacts) -> Iterator[Finding]:
    if comparison.clock is None:
        return
    offset = comparison.clock.surely_s
    if abs(offset) > MOST_OFFSET_S:
        side = "ahead of" if offset > 0 else "behind"
        yield warning(
            "clock",
            f"{offset:.1f}",
            f"the clock of {node.host} is at least {abs(offset):.1f} s {side} the one here; "
            f"times in records may be off by that, and more than {MOST_OFFSET_S:g} s confuse "
            "file systems and authentication",
            "the site keeps clocks by NTP (chronyd) on every node",
        )
