"""At which step a run would continue, for people who are about to resume it; reads no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hpckit.errors import HpckitError, UsageError
from hpckit.model.states import RunState
from hpckit.operations.checkpoints.find import find_checkpoints
from hpckit.operations.frozen_script import require_python
from hpckit.record.launches import Launch, load_settings
from hpckit.record.lookup import Selection
from hpckit.report.rows import RunRow
from hpckit.values import replace

_ENDED = frozenset({RunState.failed, RunState.interrupted, RunState.cancelled})


def resume_words(launch: Launch, index: int, *, stepped: bool = False) -> str:
    """Return from which step a resume continues a run; empty if that cannot be read.

    `stepped` is whether it has reported steps, as an attached script does.
    """
    with suppress(HpckitError, OSError):
        (found,) = find_checkpoints(Selection(launch=launch, index=index))
        good = (
            entry
            for entry in found.entries
            if entry.manifest is not None and found.history.healthy(entry.name)
        )
        newest = next(good, None)
        if newest is not None:
            return f"from step {newest.step}"
        if stepped or load_settings(launch, index)[0].entry_point is not None:
            return "from step 0: it has no checkpoint"
        return "from its beginning, unless the command loads what it saved"
    return ""


def with_resume_steps(launch: Launch, rows: Sequence[RunRow], *, steps: bool) -> Sequence[RunRow]:
    """Return the rows with why a resume refuses them or, with `steps`, the step it begins at.

    Of another user's launch nothing is looked up: it names folders of its owner's choice.
    """
    if launch.stranger is not None:
        return rows
    try:
        require_python(launch)
    except UsageError as error:
        return [replace(row, refusal=f"{error.message}\n  {error.hint}") for row in rows]
    return [
        replace(row, resume=resume_words(launch, row.index, stepped=row.step is not None))
        if steps and row.state in _ENDED and row.attempt
        else row
        for row in rows
    ]
