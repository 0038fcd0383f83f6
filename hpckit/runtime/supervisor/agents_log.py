"""The output of the agents' step, as an explanation of a failure.

Quotes the helpful lines and recognises one: that of an agent that cannot read its folder.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from hpckit.model.failure import FROZEN_FOLDER_UNREADABLE, Cause, Failure
from hpckit.record.store import tail
from hpckit.runtime.threads import aside

_LINES = 40
_QUOTED = 12
_READ_S = 10.0
"""How long to wait for a text that only explains something."""
_IDLE = ("srun: cluster configuration lacks support for cpu binding",)
"""What launchers print in every step and is of no help."""


async def explained(failure: Failure, log: Path) -> Failure:
    """Add the agents' output, which names a node that cannot read its folder."""
    try:
        text = await asyncio.wait_for(aside(lambda: tail(log, _LINES)), _READ_S)
    except TimeoutError:
        return failure
    lines = [line for line in text.splitlines() if not line.startswith(_IDLE)]
    if not lines:
        return failure
    cause = Cause.frozen_folder if FROZEN_FOLDER_UNREADABLE in text else failure.cause
    words = "\n".join([failure.message, *lines[-_QUOTED:]])
    return replace(failure, cause=cause, message=words)
