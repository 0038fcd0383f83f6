"""Records what NVML answers to hpckit, without serials, UUIDs and addresses; replays it, too.

`RecordingNvml` stands where the bindings stand (the module `pynvml`), passes every call on, and
keeps each answer as JSON. `ReplayedNvml` answers from that, so that a test runs hpckit's own
code on what a real GPU said.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_PCI = re.compile(r"\b(?:[0-9a-fA-F]{4,8}):[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]\b")
_HIDDEN = {"pid": 4242, "bus": 1, "device": 0, "domain": 0, "pciSubSystemId": 0}
"""Members that tell one machine from another, and what stands for them."""
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_METRICS_GET = "nvmlGpmMetricsGet"
_FIELDS = "nvmlDeviceGetFieldValues"


def key_of(name: str, arguments: tuple[Any, ...], version: Any = None) -> str:
    """Return by what an answer is found again: the call and its plain arguments."""
    words = [_argument(one) for one in (*arguments, *([] if version is None else [version]))]
    return f"{name}({', '.join(words)})"


def _argument(value: Any) -> str:
    if isinstance(value, int | str | float):
        return repr(hidden(value))
    if isinstance(value, list | tuple):
        return repr([list(one) if isinstance(one, tuple) else one for one in value])
    return "*"


def hidden(value: Any) -> Any:
    """Return a text with other UUIDs and addresses in place of the real ones; all else as it is."""
    if not isinstance(value, str):
        return value
    named = _UUID.sub(lambda found: f"{found[1]}-00000000-0000-0000-0000-000000000001", value)
    return _PCI.sub(lambda found: "0" * (found[0].index(":") - 2) + "00:01:00.0", named)


def plain(value: Any) -> Any:
    """Return an answer as JSON can hold it; of a pointer only to what it points."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return hidden(value.decode(errors="replace") if isinstance(value, bytes) else value)
    if isinstance(value, list | tuple | ctypes.Array):
        return [plain(one) for one in value]
    if hasattr(value, "nvmlReturn") and hasattr(value, "valueType"):
        return _field_value(value)
    if hasattr(value, "contents"):
        return {"pointer": type(value).__name__.removeprefix("LP_struct_")}
    return {name: _member(name, one) for name, one in _members(value)}


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, ctypes.Structure):
        for one in value._fields_:
            yield one[0], getattr(value, one[0])
    elif isinstance(value, Mapping):
        yield from value.items()
    else:
        yield from ((name, one) for name, one in vars(value).items() if name[0] != "_")


def _member(name: str, value: Any) -> Any:
    return _HIDDEN[name] if name in _HIDDEN else plain(value)


def _field_value(value: Any) -> dict[str, Any]:
    kind = int(value.valueType)
    known = int(value.nvmlReturn) == 0 and kind < len(_VALUES)
    return {
        "fieldId": int(value.fieldId),
        "scopeId": int(value.scopeId),
        "valueType": kind,
        "nvmlReturn": int(value.nvmlReturn),
        "value": plain(getattr(value.value, _VALUES[kind])) if known else None,
    }


@dataclass(slots=True)
class RecordingNvml:
    """The bindings, whose answers are kept: for each key all of them, in their order."""

    real: Any
    answers: dict[str, list[Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        """Return a call of the bindings that keeps its answer, or anything else of theirs."""
        found = getattr(self.real, name)
        is_call = name.startswith("nvml") and callable(found) and not isinstance(found, type)
        return self._recorded(name, found) if is_call else found

    def begin(self) -> dict[str, list[Any]]:
        """Return what was recorded so far, and begin anew."""
        before, self.answers = self.answers, {}
        return before

    def _recorded(self, name: str, call: Any) -> Any:
        def recorded(*arguments: Any, **named: Any) -> Any:
            kept = self.answers.setdefault(key_of(name, arguments, named.get("version")), [])
            try:
                answer = call(*arguments, **named)
            except self.real.NVMLError as error:
                kept.append({"error": int(error.value)})
                raise
            told = _metrics(arguments[0]) if name == _METRICS_GET else answer
            kept.append({"answer": plain(told)})
            return answer

        return recorded


def _metrics(asked: Any) -> list[dict[str, Any]]:
    return [
        {"metricId": int(metric.metricId), "nvmlReturn": int(metric.nvmlReturn), "value": metric.value}
        for metric in list(asked.metrics)[: int(asked.numMetrics)]
    ]


@dataclass(slots=True)
class ReplayedNvml:
    """Answers as a recorded GPU did: each call in order, then the last answer again.

    `bindings` are the installed ones, for their constants and errors. A call that was not recorded
    is one that the driver does not know.
    """

    bindings: Any
    answers: Mapping[str, list[Any]]
    _asked: dict[str, int] = field(default_factory=dict)
    _fields: dict[tuple[int, int], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, kept in self.answers.items():
            for entry in kept if key.startswith(_FIELDS) else ():
                for one in entry.get("answer", ()):
                    self._fields.setdefault((one["fieldId"], one["scopeId"]), []).append(one)

    def __getattr__(self, name: str) -> Any:
        """Return a call that answers from the record, or a constant of the bindings."""
        found = getattr(self.bindings, name)
        is_call = name.startswith("nvml") and callable(found) and not isinstance(found, type)
        return self._replayed(name) if is_call else found

    def _field(self, number: int, scope: int) -> dict[str, Any]:
        """Return the next answer of a field, in whatever call it was recorded."""
        kept = self._fields.get((number, scope))
        if kept is None:
            return {"fieldId": number, "scopeId": scope, "valueType": 0, "nvmlReturn": 3}
        return dict(kept.pop(0) if len(kept) > 1 else kept[0])

    def _replayed(self, name: str) -> Any:
        def replayed(*arguments: Any, **named: Any) -> Any:
            if name == _FIELDS:
                told = [self._field(*argument) for argument in arguments[1]]
                return answered(self.bindings, [{"value": None, **one} for one in told])
            key = key_of(name, arguments, named.get("version"))
            kept = self.answers.get(key)
            if not kept:
                raise self.bindings.NVMLError(self.bindings.NVML_ERROR_FUNCTION_NOT_FOUND)
            turn = self._asked.get(key, 0)
            self._asked[key] = turn + 1
            entry = kept[min(turn, len(kept) - 1)]
            if "error" in entry:
                raise self.bindings.NVMLError(entry["error"])
            if name == _METRICS_GET:
                _fill(arguments[0], entry["answer"])
                return arguments[0]
            return answered(self.bindings, entry["answer"])

        return replayed


def _fill(asked: Any, metrics: list[dict[str, Any]]) -> None:
    by_id = {metric["metricId"]: metric for metric in metrics}
    for entry in list(asked.metrics)[: int(asked.numMetrics)]:
        told = by_id.get(int(entry.metricId), {"nvmlReturn": 3, "value": 0.0})
        entry.nvmlReturn, entry.value = told["nvmlReturn"], told["value"]


def answered(bindings: Any, value: Any) -> Any:
    """Return an answer in the form in which the bindings give it."""
    if isinstance(value, list):
        return [answered(bindings, one) for one in value]
    if not isinstance(value, dict):
        return value
    if "pointer" in value:
        return ctypes.cast(ctypes.c_void_p(1), getattr(bindings, value["pointer"]))
    if "nvmlReturn" in value and "valueType" in value:
        union = SimpleNamespace(**dict.fromkeys(_VALUES, value["value"]))
        return SimpleNamespace(**{**value, "value": union})
    return SimpleNamespace(**{name: answered(bindings, one) for name, one in value.items()})
