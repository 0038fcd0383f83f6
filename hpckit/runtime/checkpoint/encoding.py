"""A state dictionary as flat tensors and a JSON skeleton, and back; bitwise.

Handles nested plain values, numpy arrays and tensors. Nothing is pickled: a value that has no exact
form here is refused, with its place and type, when it is saved, not when it is needed.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hpckit.runtime.checkpoint.errors import StateError

SKELETON = "#"
"""Suffix of the key of an object's skeleton, which is stored next to its tensors' keys."""

_MAPPINGS: Mapping[str, type[Any]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_KINDS = {kind: name for name, kind in _MAPPINGS.items()}
_FACTORIES: Mapping[str, type[Any] | None] = {
    "none": None,
    **{kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)},
}
"""Allowed default factories of a defaultdict; a function of the user has no exact form here."""
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
_SEQUENCES: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}


@dataclass(slots=True)
class _Encoder:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def put(self, path: str, tensor: torch.Tensor) -> str:
        while path in self.tensors:
            path += "'"
        self.tensors[path] = tensor
        return path

    def encode(self, path: str, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in {bool, int, float, str}:
            return value
        if kind is list:
            return [self.encode(f"{path}/{i}", one) for i, one in enumerate(value)]
        if isinstance(value, dict):
            return self._mapping(path, value)
        if kind.__name__ in _SEQUENCES and kind in {tuple, set, frozenset}:
            return {kind.__name__: self.encode(path, list(value))}
        if kind is torch.Size:
            return {"size": list(value)}
        return self._special(path, value)

    def _mapping(self, path: str, value: dict[Any, Any]) -> Any:
        kind = _KINDS.get(type(value))
        if kind is not None:
            return {kind: self._pairs(path, value)}
        if type(value) is defaultdict and value.default_factory in _FACTORY_NAMES:
            factory = _FACTORY_NAMES[value.default_factory]
            return {"defaults": [factory, self._pairs(path, value)]}
        raise _refused(path, value)

    def _pairs(self, path: str, value: dict[Any, Any]) -> list[Any]:
        return [
            [self.encode(f"{path}/{key}", key), self.encode(f"{path}/{key}", one)]
            for key, one in value.items()
        ]

    def _special(self, path: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self.put(path, value.detach())}
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        if type(value) is np.ndarray and not value.dtype.hasobject:
            flat = torch.frombuffer(bytearray(value.tobytes() or b"\0"), dtype=torch.uint8)
            return {"array": [self.put(path, flat), value.dtype.str, list(value.shape)]}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if type(value) is complex:
            return {"complex": [value.real, value.imag]}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        raise _refused(path, value)


def _kind_of(value: Any) -> str:
    name = f"a {type(value).__module__}.{type(value).__qualname__}"
    return f"{name} of {value.default_factory!r}" if isinstance(value, defaultdict) else name


def _refused(path: str, value: Any) -> StateError:
    return StateError(
        f"the state at {path} is {_kind_of(value)}; allowed are numbers, strings, bytes, None, "
        "lists, tuples, sets, dictionaries (also OrderedDict, Counter, and defaultdict of a "
        "built-in type), tensors and numpy arrays, not what is derived from them",
        hint="turn it into one of these in state_dict, and back in load_state_dict",
    )


def encode_state(path: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a state by key, all below `path`, including its skeleton.

    Raises StateError for a value that has no exact form.
    """
    encoder = _Encoder()
    skeleton = json.dumps(encoder.encode(path, value), separators=(",", ":"))
    packed = torch.frombuffer(bytearray(skeleton.encode()), dtype=torch.uint8)
    return {path + SKELETON: packed} | encoder.tensors


def decode_state(path: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `encode_state` was given, from its tensors."""
    skeleton = json.loads(tensors[path + SKELETON].numpy().tobytes())
    return _decode(skeleton, tensors)


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_decode(content, tensors))
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](_decode_pairs(content, tensors))
    if kind == "defaults":
        return defaultdict(_FACTORIES[content[0]], _decode_pairs(content[1], tensors))
    return _array(content, tensors) if kind == "array" else _LEAVES[kind](content, tensors)


def _decode_pairs(pairs: list[Any], tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    return {_decode(key, tensors): _decode(one, tensors) for key, one in pairs}


def _array(content: list[Any], tensors: Mapping[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    key, dtype, shape = content
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    data = tensors[key].numpy().tobytes()[:count]
    return np.frombuffer(bytearray(data), dtype=kind).reshape(shape)


def _scalar(content: list[str]) -> Any:
    return np.frombuffer(base64.b64decode(content[1]), dtype=np.dtype(content[0]))[0]


_LEAVES: Mapping[str, Callable[[Any, Mapping[str, torch.Tensor]], Any]] = {
    "tensor": lambda key, tensors: tensors[key],
    "scalar": lambda content, _: _scalar(content),
    "bytes": lambda content, _: base64.b64decode(content),
    "complex": lambda content, _: complex(*content),
    "dtype": lambda name, _: getattr(torch, name),
    "device": lambda name, _: torch.device(name),
}
