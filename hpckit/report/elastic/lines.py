"""The satellite jobs of runs as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted
from hpckit.report.rows import RunRow


def satellite_lines(rows: Iterable[RunRow]) -> Iterator[str]:
    """Yield a line for each satellite job that waits or runs.

    Example: `satellite job 12 of charlm.0 is running: 1 replica more on n[3-4]`.
    """
    for row in rows:
        for one in row.satellites:
            where = f" on {compress_nodes(one.nodes)}" if one.nodes else ""
            yield (
                f"satellite job {one.job} of {row.run} is {one.state}: "
                f"{counted(one.replicas, 'replica')} more{where}"
            )
