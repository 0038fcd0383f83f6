"""The process of one rank of a call: `python -P -m hpckit.executor.call TEXT`.

It makes the call, and writes down what it returned or raised. On a notice it asks what the next
attempt shall call. It decides nothing about restarts. Outside of a run it prints the result.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from hpckit.api.pickling import load_own_pickle, pickle_for_run
from hpckit.api.submitit_keys import build_local_task_variables
from hpckit.errors import UsageError
from hpckit.executor.encoding import NEXT_CALL, DelayedSubmission, commit_result, read_call
from hpckit.model import messages
from hpckit.model.failure import ExitReason, ExitStatement
from hpckit.model.rank import RankInfo
from hpckit.planning.recovery.ends import LEFT_CODE
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.store import make_private_folder, write_chunks
from hpckit.runtime.channel.rank_pipe import AgentLink, open_agent_link
from hpckit.runtime.environ import copy_environment, rank_info, set_environment_variables
from hpckit.runtime.rank.process import RankProcess, report_end
from hpckit.runtime.signals import RANK_NOTICES
from hpckit.values import dataclass

_ATTACHING = "hpckit.runtime.rank.attach"
"""A function that has imported this talks to the agent itself."""


@dataclass(slots=True, kw_only=True)
class RankOfCall:
    """One rank of a run whose work is one call."""

    text: str
    environ: Mapping[str, str]
    info: RankInfo
    paths: RunPaths

    def make_call(self) -> int:
        """Call the function and commit what it returns; return the exit code.

        If all ranks have committed a result already, it was killed after that: nothing is called.
        """
        attempt = AttemptPaths(Path(self.environ["HPCKIT_ATTEMPT_DIR"]))
        place = {"attempt": int(attempt.folder.name), "round": int(self.environ["HPCKIT_ROUND"])}
        if not all(self.paths.call_result(rank).exists() for rank in range(self.info.world_size)):
            try:
                commit_result(self.paths, self.info.rank, place, self._call_function())
            except SystemExit:
                raise
            except BaseException as error:  # noqa: BLE001  # the user's code
                file = attempt.round(place["round"]).rank_exception_file(self.info.rank).with_suffix(".pkl")
                with contextlib.suppress(Exception):  # its words are recorded in any case
                    write_chunks(file, [pickle_for_run("the error", error)])
                sys.last_value = error  # for what attach() does at the end
                return report_end(RankProcess(environ=self.environ, info=self.info), _hide_own_frames(error))
        self._tell_agent(lambda link: link.note_exit_statement(ExitStatement(reason=ExitReason.returned)))
        return 0

    def _call_function(self) -> Any:
        call = read_call(self.text)
        if (self.paths.call / NEXT_CALL).exists():
            function, args, kwargs = load_own_pickle(self.paths.call / NEXT_CALL)
            call = DelayedSubmission(function, *args, **kwargs)
        self._listen_to_notices(call)
        try:
            return call.function(*call.args, **call.kwargs)
        except SystemExit as end:
            if end.code:
                raise
            message = "the function called sys.exit(), so there is no result"
            raise UsageError(message, hint="return from it instead") from end

    def _listen_to_notices(self, call: DelayedSubmission) -> None:
        names = ("__submitit_checkpoint__", "checkpoint")
        checkpoint = next(filter(callable, (getattr(call.function, name, None) for name in names)), None)
        if checkpoint is None:
            return

        def leave(_number: int, _frame: FrameType | None) -> None:
            if self.info.rank:
                return  # rank 0 may need its peers until it has written
            for number in RANK_NOTICES:
                signal.signal(number, signal.SIG_IGN)
            self._write_next_call(checkpoint(*call.args, **call.kwargs))
            raise SystemExit(LEFT_CODE)

        for number in RANK_NOTICES:
            signal.signal(number, leave)

    def _write_next_call(self, following: Any) -> None:
        if following is None:
            sys.stderr.write("hpckit: checkpoint() returned None: the next attempt makes the same call\n")
            return
        began = time.monotonic()
        make_private_folder(self.paths.call)
        following = (following.function, tuple(following.args), dict(following.kwargs))
        data = pickle_for_run("what checkpoint() returned", following)
        write_chunks(self.paths.call / NEXT_CALL, [data])
        took = time.monotonic() - began
        saved = messages.Saved(step=0, size=len(data), stall_s=took, duration_s=took)
        self._tell_agent(lambda link: link.send(saved))

    def _tell_agent(self, tell: Callable[[AgentLink], None]) -> None:
        link = None if _ATTACHING in sys.modules else open_agent_link(self.environ)
        if link is not None:
            tell(link)
            link.connection.detach()  # stays open as long as this process


def _hide_own_frames(error: BaseException) -> BaseException:
    trace, own = error.__traceback__, Path(__file__).parent
    while trace and trace.tb_next and Path(trace.tb_frame.f_code.co_filename).parent == own:
        trace = trace.tb_next
    return error.with_traceback(trace)


def main(text: str) -> int:
    """Make the call that is described in a text; returns the exit code."""
    environ = copy_environment()
    if "HPCKIT_ROUND" not in environ:
        sys.stdout.write(f"{read_call(text).result()!r}\n")
        return 0
    info, paths = rank_info(environ), RunPaths(Path(environ["HPCKIT_RUN_DIR"]))
    set_environment_variables(build_local_task_variables(environ, info))
    return RankOfCall(text=text, environ=environ, info=info, paths=paths).make_call()


if __name__ == "__main__" and (code := main(sys.argv[1])):
    sys.exit(code)
