"""How a program of ours that runs as a command tells its agent whether the function it calls came to its end.

Of a plain command the agent believes exit code 0. Such a program promises more before it calls anything, so
that `os._exit(0)` inside the function is a failure, as it is in an entry point. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.failure import ExitReason, ExitStatement
from hpckit.planning.recovery.ends import LEFT_CODE
from hpckit.runtime.channel.rank_pipe import open_agent_link
from hpckit.runtime.rank.exit_status import status_to_exit_code


def note_exit_reason(environ: Mapping[str, str], reason: ExitReason) -> None:
    """Tell the agent why this process ends; `exited` beforehand is the promise that another reason follows.

    What `attach()` in the function says at the end of the process overwrites it.
    """
    if (link := open_agent_link(environ)) is not None:
        link.note_exit_statement(ExitStatement(reason=reason))
        link.connection.detach()  # stays open as long as this process


def note_exit_status(environ: Mapping[str, str], status: object) -> None:
    """Tell the agent that the function asked for its end by `SystemExit(status)`, as a plain command may."""
    of_commands = {0: ExitReason.ended, LEFT_CODE: ExitReason.left}
    note_exit_reason(environ, of_commands.get(status_to_exit_code(status), ExitReason.exited))
