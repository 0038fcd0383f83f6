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


def ask_study(launch: Launch, index: int) -> None:
    """Give a run its values; raises RunError and OSError."""
    _study(launch).assign_values(launch, index)


def tell_study(launch: Launch, index: int) -> str:
    """Report to the study how a run has ended, if it has; return what the user should know.

    Nothing is lost if that fails: the next run that asks for values reports it.
    """
    try:
        warning: str = _study(launch).report_end(launch, index)
    except (HpckitError, OSError) as error:
        return f"the study does not know yet how the run ended: {error}"
    return warning


def open_trial(launch: Launch, index: int) -> tuple[optuna.Trial, set[int]]:
    """Return a run's trial, to report values to, and the steps that already have one.

    Raises RunError and OSError.
    """
    trial: tuple[optuna.Trial, set[int]] = _study(launch).load_trial(launch, index)
    return trial


def _study(launch: Launch) -> ModuleType:
    try:
        from hpckit.runtime.study import study  # noqa: PLC0415  # slow, and optional
    except ModuleNotFoundError as error:
        raise RunError(
            f"sweep.sampler=optuna, and the Python of the nodes ({launch.python}) has no "
            f"{error.name}",
            hint=f"install it there: {INSTALL}",
        ) from error
    return study
