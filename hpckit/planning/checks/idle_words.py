"""Warnings about typed words that change nothing without another one. Pure.

Values from files are not looked at: they are meant for many launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model.finding import Finding, warning
from hpckit.model.launch import LaunchConfig, StragglerPolicy
from hpckit.model.outside.tracker import TrackerKind
from hpckit.model.ranges import ranges
from hpckit.model.telemetry.settings import ProfileTool


def idle_words(settings: LaunchConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield a warning for each word of `words` that has no effect with these settings.

    ```python
    [one.message for one in idle_words(settings, ["recovery.on_straggler=move"])]
    # ["recovery.on_straggler=move moves nothing: the run has no spare node"]
    ```
    """
    typed = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    profile, tracker, size = settings.observe.profile, settings.tracker, _world_size(settings)
    planned = profile.at_step is not None or profile.tool is ProfileTool.nsys
    if (key := "observe.profile.ranks") in typed and not planned:
        absent = [rank for rank in profile.ranks if rank >= size]
        also = f", and the run has no rank {ranges(absent)}" if absent else ""
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} profiles nothing: no profile is planned{also}",
            "plan one with observe.profile.at_step=100, or ask for one while the run trains: "
            "hpckit profile RUN --ranks 0",
        )
    if (key := "tracker.project") in typed and tracker.kind is TrackerKind.none:
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} names no project: tracker.kind is none",
            "choose tracker=wandb or tracker=mlflow",
        )
    if (key := "notify.file") in typed and not settings.notify.events:
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} gets no notice: notify.events is empty",
            "say what is told: notify.events=[failed,completed]",
        )
    moves = settings.recovery.on_straggler is StragglerPolicy.move
    if (key := "recovery.on_straggler") in typed and moves and not settings.resources.spare_nodes:
        yield warning(
            key,
            typed[key],
            f"{key}=move moves nothing: the run has no spare node",
            "ask for one: resources.spare_nodes=1",
        )


def _world_size(settings: LaunchConfig) -> int:
    return settings.resources.nodes * settings.resources.tasks_per_node
