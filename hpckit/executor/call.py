"""The process of one rank of a call: `python -P -m hpckit.executor.call TEXT`.

It makes the call, and writes down what it returned or raised. On a notice it asks what the next
attempt shall call. Outside of a run it prints the result.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.api.pickling import load_own_pickle, pickle_for_run
from hpckit.api.submitit_keys import build_local_task_variables
from hpckit.errors import UsageError
from hpckit.executor.encoding import DelayedSubmission, commit_result, read_call
from hpckit.model import messages
from hpckit.model.failure import ExitReason
from hpckit.planning.recovery.ends import LEFT_CODE
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.record.store import make_private_folder, write_chunks
from hpckit.runtime.channel.rank_pipe import open_agent_link
from hpckit.runtime.environ import copy_environment, rank_info, set_environment_variables
from hpckit.runtime.rank.called_function import note_exit_reason, note_exit_status
from hpckit.runtime.rank.process import RankProcess, report_end
from hpckit.runtime.signals import RANK_NOTICES


class RankOfCall:
    """One rank of a run whose work is one call."""

    def __init__(self, text: str, environ: Mapping[str, str]) -> None:
        self.text, self.environ, self.info = text, environ, rank_info(environ)
        self.paths = RunPaths(Path(environ["HPCKIT_RUN_DIR"]))
        self.next_call = self.paths.call / "next.pkl"

    def make_call(self) -> int:
        """Call the function and commit what it returns; return the exit code.

        If all ranks have committed a result already, it was killed after that: nothing is called.
        """
        note_exit_reason(self.environ, ExitReason.exited)
        attempt = AttemptPaths(Path(self.environ["HPCKIT_ATTEMPT_DIR"]))
        place = {"attempt": int(attempt.folder.name), "round": int(self.environ["HPCKIT_ROUND"])}
        if not all(self.paths.call_result(rank).exists() for rank in range(self.info.world_size)):
            try:
                commit_result(self.paths, self.info.rank, place, self._call_function())
            except SystemExit as end:
                note_exit_status(self.environ, end.code)
                raise
            except BaseException as error:  # noqa: BLE001  # the user's code
                file = attempt.round(place["round"]).rank_exception_file(self.info.rank).with_suffix(".pkl")
                with contextlib.suppress(Exception):  # its words are recorded in any case
                    write_chunks(file, [pickle_for_run("the error", error)])
                trace = error.__traceback__
                while trace and trace.tb_next and trace.tb_frame.f_globals.get("__package__") == __package__:
                    trace = trace.tb_next
                sys.last_value = error.with_traceback(trace)  # for what attach() does at the end
                return report_end(RankProcess(environ=self.environ, info=self.info), error)
        note_exit_reason(self.environ, ExitReason.returned)
        return 0

    def _call_function(self) -> Any:
        set_environment_variables(build_local_task_variables(self.environ, self.info))
        call = load_own_pickle(self.next_call) if self.next_call.exists() else read_call(self.text)
        self._listen_to_notices(call)
        try:
            return call.function(*call.args, **call.kwargs)
        except SystemExit as end:
            if end.code:
                raise
            message = "the function called sys.exit(), so there is no result"
            raise UsageError(message, hint="return from it instead") from end

    def _listen_to_notices(self, call: DelayedSubmission) -> None:
        found = (getattr(call.function, name, None) for name in ("__submitit_checkpoint__", "checkpoint"))
        if (checkpoint := next(filter(callable, found), None)) is not None:
            for number in RANK_NOTICES:
                signal.signal(number, partial(self._leave, call, checkpoint))

    def _leave(self, call: DelayedSubmission, checkpoint: Callable[..., Any], *_: Any) -> None:
        if self.info.rank:
            return  # rank 0 may need its peers until it has written
        for number in RANK_NOTICES:
            signal.signal(number, signal.SIG_IGN)
        following, began = checkpoint(*call.args, **call.kwargs), time.monotonic()
        if following is None:
            sys.stderr.write("hpckit: checkpoint() returned None: the next attempt makes the same call\n")
            raise SystemExit(LEFT_CODE)
        make_private_folder(self.paths.call)
        following = DelayedSubmission(following.function, *following.args, **following.kwargs)
        data = pickle_for_run("what checkpoint() returned", following)
        write_chunks(self.next_call, [data])
        took = time.monotonic() - began
        saved = messages.Saved(step=0, size=len(data), stall_s=took, duration_s=took)
        attaching = "hpckit.runtime.rank.attach" in sys.modules  # the function talks to the agent itself
        if not attaching and (link := open_agent_link(self.environ)) is not None:
            link.send(saved)
            link.connection.detach()  # stays open as long as this process
        raise SystemExit(LEFT_CODE)


def main(text: str) -> int:
    """Make the call that is described in a text; returns the exit code."""
    environ = copy_environment()
    if "HPCKIT_ROUND" not in environ:
        sys.stdout.write(f"{read_call(text).result()!r}\n")
        return 0
    return RankOfCall(text, environ).make_call()


if __name__ == "__main__" and (code := main(sys.argv[1])):
    sys.exit(code)
