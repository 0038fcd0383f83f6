"""The training as hpckit runs it."""

from typing import Any

import work


def train(_config: Any, run: Any) -> None:
    """Train every step; hpckit saves and loads."""
    model, optimizer = work.begin()
    run.state(model=model, optimizer=optimizer)
    for step in run.steps(work.STEPS):
        work.train_one(model, optimizer, step)
