"""Access to the study of an adaptive sweep, for processes that may not have Optuna.

Few launches are adaptive sweeps, and importing Optuna takes a second.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from hpckit.errors import HpckitError, RunError
from hpckit.record.launches import Launch

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install '.[optuna]' in hpckit's checkout"


def assign_study_values(launch: Launch, index: int) -> None:
    """Give a run its values; raises RunError and OSError."""
    _import_study(launch).assign_values(launch, index)


def report_run_end(launch: Launch, index: int) -> str:
    """Report to the study how a run has ended, if it has; return what the user should know.

    Nothing is lost if that fails: the next run that asks for values reports it.
    """
    try:
        warning: str = _import_study(launch).report_end(launch, index)
    except (HpckitError, OSError) as error:
        return f"the end of the run could not be reported to the study yet: {error}"
    return warning


def open_trial(launch: Launch, index: int) -> tuple[optuna.Trial, set[int]]:
    """Return a run's trial, to report values to, and the steps that already have one.

    Raises RunError and OSError.
    """
    trial: tuple[optuna.Trial, set[int]] = _import_study(launch).load_trial(launch, index)
    return trial


def _import_study(launch: Launch) -> ModuleType:
    try:
        from hpckit.runtime.study import study  # noqa: PLC0415  # slow, and optional
    except ModuleNotFoundError as error:
        raise RunError(
            f"sweep.sampler=optuna needs a package that the nodes' Python ({launch.python}) lacks: "
            f"{error.name}",
            hint=f"install it there: {INSTALL}",
        ) from error
    return study
