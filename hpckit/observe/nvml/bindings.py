"""The bindings of NVIDIA's management library, and what its errors mean for a sampler.

The distribution is nvidia-ml-py; its module is called `pynvml`. Another distribution of that very
name is deprecated: in its old releases a different module, in its newest a warning at each import.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from enum import Enum, auto
from importlib import metadata
from typing import Any, TypeVar

from hpckit.values import dataclass, field

T = TypeVar("T")


class NvmlVerdict(Enum):
    """What an error of a call says about asking again."""

    never = auto()
    """this GPU or this driver cannot answer: not asked again"""
    lost = auto()
    """the GPU is gone, or needs a reset"""
    gone = auto()
    """the driver is gone, or was exchanged"""
    later = auto()
    """anything else: asked again with the next sample"""


_VERDICTS = {
    NvmlVerdict.never: (2, 3, 4, 13, 25, 26),
    NvmlVerdict.lost: (15, 16, 28),
    NvmlVerdict.gone: (1, 9, 12, 18),
}
"""INVALID_ARGUMENT (an older driver, to a field it does not know), NOT_SUPPORTED, NO_PERMISSION,
FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED; GPU_IS_LOST, RESET_REQUIRED,
GPU_NOT_FOUND; UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH."""
_BY_CODE = {code: verdict for verdict, codes in _VERDICTS.items() for code in codes}

RESET_REQUIRED = 16


class _NvmlLostError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class GpuLostError(_NvmlLostError):
    """A GPU does not answer any more; `code` is NVML's error."""


class DriverLostError(_NvmlLostError):
    """No GPU answers: the driver is gone; `code` is NVML's error."""


def classify_nvml_error_for_retry(code: int) -> NvmlVerdict:
    """Return what an error code of NVML says about asking again."""
    return _BY_CODE.get(code, NvmlVerdict.later)


def raise_if_device_lost(code: int) -> None:
    """Raise GpuLostError or DriverLostError for an error code of NVML that says so."""
    if classify_nvml_error_for_retry(code) is NvmlVerdict.lost:
        raise GpuLostError(code)
    if classify_nvml_error_for_retry(code) is NvmlVerdict.gone:
        raise DriverLostError(code)


def import_nvml_bindings() -> Any:
    """Import and return the bindings; raises ImportError.

    Called where GPUs are first asked for: the module is large, and most verbs need no GPU.
    """
    with warnings.catch_warnings():
        # The deprecated distribution warns with each import, also where it is not what is imported.
        warnings.simplefilter("ignore", FutureWarning)
        module = importlib.import_module("pynvml")
    if not hasattr(module, "_nvmlGetFunctionPointer") or not hasattr(module, "nvmlMemory_v2"):
        raise ImportError("the module pynvml is not that of nvidia-ml-py, or too old")
    return module


def means_no_driver(nvml: Any, code: int) -> bool:
    """Return whether an error code of NVML says that no driver of NVIDIA is loaded."""
    return (
        classify_nvml_error_for_retry(code) is NvmlVerdict.gone
        and code != nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    )


def find_deprecated_pynvml(version: Callable[[str], str] = metadata.version) -> str | None:
    """Return the version of the deprecated distribution `pynvml`; None if it is not installed.

    Parameter: `version` returns that of a distribution, or raises PackageNotFoundError.
    """
    try:
        return version("pynvml")
    except metadata.PackageNotFoundError:
        return None


def describe_deprecated_pynvml(version: Callable[[str], str] = metadata.version) -> str:
    """Return what is wrong with the installed distributions, as a note to people; empty if nothing.

    Parameter: as of `find_deprecated_pynvml`.
    """
    found = find_deprecated_pynvml(version)
    if found is None:
        return ""
    return (
        f"the distribution pynvml {found} is installed; it is deprecated, and its module hides or "
        "precedes that of nvidia-ml-py: run `pip uninstall pynvml`, then "
        "`pip install --force-reinstall nvidia-ml-py`"
    )


@dataclass(slots=True, kw_only=True)
class NvmlCalls:
    """The calls to one GPU. What it does not support is found out once, and not asked again."""

    nvml: Any
    handle: Any
    refused: set[str] = field(default_factory=set)
    answered: int = 0
    failed: int = 0
    """Calls that failed in a way that may pass."""
    last_code: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    """Calls that were answered with what is no answer, and what was wrong with it."""

    def call_or_none(self, name: str, call: Callable[[Any, Any], T]) -> T | None:
        """Return what `call(nvml, handle)` returns, None if it cannot be read.

        Raises GpuLostError, DriverLostError.
        """
        if name in self.refused:
            return None
        try:
            answer = call(self.nvml, self.handle)
        except self.nvml.NVMLError as error:
            self.record_call_error(name, int(error.value))
            return None
        except Exception as error:  # noqa: BLE001  # the bindings could not read the answer
            self.refused.add(name)
            self.unread[name] = str(error)
            return None
        self.answered += 1
        return answer

    def call_nvml_function(self, function: str, *arguments: int) -> Any:
        """Return what the function of this name says of the GPU, with `ask`."""
        name = " ".join(map(str, (function, *arguments)))
        return self.call_or_none(name, lambda nvml, handle: getattr(nvml, function)(handle, *arguments))

    def record_call_error(self, name: str, code: int) -> None:
        """Take note of an error of the call of this name; raises GpuLostError, DriverLostError."""
        raise_if_device_lost(code)
        if classify_nvml_error_for_retry(code) is NvmlVerdict.never:
            self.refused.add(name)
        else:
            self.failed += 1
            self.last_code = code

    def reset_answer_counts(self) -> None:
        """Begin to count answers, for `conclude`."""
        self.answered = self.failed = 0

    def raise_if_no_call_answered(self) -> None:
        """Raise GpuLostError if since `begin` no call was answered, and not for lack of support.

        A GPU that fell off its bus may answer every call with an unknown error.
        """
        if self.failed and not self.answered:
            raise GpuLostError(self.last_code)
