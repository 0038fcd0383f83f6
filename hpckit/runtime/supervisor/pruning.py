"""Whether a run of an adaptive sweep should end early, based on its reports.

Passes reports on to the study, outside the event loop, and returns its verdict. It ends nothing
itself: the ranks agree on that at a step boundary.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpckit.errors import HpckitError
from hpckit.model.launch import LaunchConfig
from hpckit.model.messages import Reported
from hpckit.model.search import Pruner
from hpckit.record.launches import Launch
from hpckit.runtime.study.access import open_trial
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    import optuna


@dataclass(slots=True, kw_only=True)
class TrialPruner:
    """Asks the study about one round of a run."""

    launch: Launch
    index: int
    _reports: asyncio.Queue[Reported] = field(default_factory=asyncio.Queue, init=False)
    _trial: optuna.Trial | None = field(default=None, init=False)
    _known: set[int] = field(default_factory=set, init=False)

    def queue_report_for_study(self, report: Reported) -> None:
        """Add a report."""
        self._reports.put_nowait(report)

    async def await_prune_decision(self) -> bool:
        """Pass reports on as they come; return True once the study says that the run is to end.

        A study that cannot be asked ends nothing: a warning is printed, and the run continues.
        """
        try:
            is_over = False
            while not is_over:
                reports = [await self._reports.get()]
                while not self._reports.empty():
                    reports.append(self._reports.get_nowait())
                is_over = await run_in_thread(partial(self._report_and_ask_to_prune, reports))
        except (HpckitError, OSError, ValueError, KeyError, RuntimeError) as error:
            sys.stderr.write(f"hpckit: warning: pruning has stopped: {error}\n")
            return False
        return True

    def _report_and_ask_to_prune(self, reports: Sequence[Reported]) -> bool:
        if self._trial is None:
            self._trial, self._known = open_trial(self.launch, self.index)
        trial = self._trial
        for report in reports:
            if report.step not in self._known:
                trial.report(report.value, report.step)
                self._known.add(report.step)
        return trial.should_prune()


def make_pruner(launch: Launch, index: int, settings: LaunchConfig) -> TrialPruner | None:
    """Return the pruner of a run; None if nothing can end it early."""
    if not launch.searched or settings.sweep.pruner is Pruner.none:
        return None
    return TrialPruner(launch=launch, index=index)
