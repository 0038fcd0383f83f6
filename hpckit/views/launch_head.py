"""The heading above the runs of a launch, the same in all displays."""

from __future__ import annotations

from hpckit.record.launches import Launch
from hpckit.report.overrides import common_words
from hpckit.report.rows import Foreign, LaunchHead


def launch_head(launch: Launch) -> LaunchHead:
    """Return the heading above the runs of a launch."""
    stranger = launch.stranger
    return LaunchHead(
        id=launch.id,
        name=launch.name,
        folder=str(launch.folder),
        created_at=launch.created_at,
        common=common_words(run.overrides for run in launch.runs),
        foreign=None
        if stranger is None
        else Foreign(uid=stranger.uid, owner=stranger.owner, reason=stranger.reason),
    )
