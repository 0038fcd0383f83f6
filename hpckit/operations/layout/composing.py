"""Composes the layouts that runs continue in: the only part of `resume` that needs Hydra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from hpckit.config.compose import compose_parallel
from hpckit.context import Context
from hpckit.model.parallel.settings import Parallel
from hpckit.record.launches import Launch, load_settings


def layout_change(
    launch: Launch, words: Sequence[str], context: Context
) -> Callable[[Parallel], Parallel]:
    """Return the function that applies these words to a run's section `parallel`.

    Files of the group are read from the frozen code. The function raises ConfigError, and so does
    this one if the words mean nothing, also where no run is left that they would be for.
    """

    @cache
    def change(present: Parallel) -> Parallel:
        cwd = Path(launch.code.working_dir)
        return compose_parallel(words, present, environ=context.environ, cwd=cwd)

    change(load_settings(launch, 0)[0].parallel)
    return change
