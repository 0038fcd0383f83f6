"""The satellite jobs of runs as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted
from hpckit.model.elastic import Satellite
from hpckit.report.rows import RunRow


def satellites_line(satellites: Sequence[Satellite]) -> str:
    """Return one line on all satellite jobs that wait or run; empty without any.

    Example: `satellites: 12 running on n[3-4], 13 pending`.
    """
    if not satellites:
        return ""
    each = (f"{one.job} {one.state}{_where(one)}" for one in satellites)
    return f"{'satellite' if len(satellites) == 1 else 'satellites'}: {', '.join(each)}"


def _where(one: Satellite) -> str:
    return f" on {compress_nodes(one.nodes)}" if one.nodes else ""


def satellite_lines(rows: Iterable[RunRow]) -> Iterator[str]:
    """Yield a line for each satellite job that waits or runs.

    Example: `satellite job 12 of charlm.0 is running: 1 replica more on n[3-4]`.
    """
    for row in rows:
        for one in row.satellites:
            yield (
                f"satellite job {one.job} of {row.run} is {one.state}: "
                f"{counted(one.replicas, 'replica')} more{_where(one)}"
            )
