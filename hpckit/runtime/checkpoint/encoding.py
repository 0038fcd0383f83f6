"""A state dictionary as flat tensors and a JSON skeleton, and back; bitwise.

Handles nested plain values, numpy arrays and tensors. Nothing is pickled: a value that has no exact
form here is refused, with its place and type, when it is saved, not when it is needed.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from hpckit.runtime.checkpoint.errors import StateError
from hpckit.values import dataclass, field

SKELETON = "#"
"""Suffix of the key of an object's skeleton, which is stored next to its tensors' keys."""

_MOST_BITS = 10_000
"""Python writes whole numbers of 4300 digits at most."""

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
class StateEncoder:
    """Turns plain values into JSON, and collects the tensors in them, by key.

    A tensor that comes again, the very same object, keeps its first key: it is stored once. With
    `place`, the skeleton has what it returns, as JSON, for the path and the value of a DTensor.
    """

    place: Callable[[str, DTensor], Mapping[str, Any]] | None = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    _keys: dict[int, tuple[torch.Tensor, str]] = field(default_factory=dict)

    def add_tensor(self, path: str, tensor: torch.Tensor) -> str:
        """Collect a tensor; return its key: the path, unless that is taken.

        Raises StateError if it has no exact form.
        """
        if id(tensor) in self._keys:
            return self._keys[id(tensor)][1]
        _refuse_unsavable_tensor(path, tensor)
        while path in self.tensors:
            path += "'"
        self.tensors[path] = tensor.detach()
        self._keys[id(tensor)] = tensor, path  # holds the tensor: its id is not given away
        return path

    def encode(self, path: str, value: Any) -> Any:
        """Return a value as JSON; raises StateError if it has no exact form."""
        kind = type(value)
        if value is None or kind in {bool, int, float, str}:
            return _refuse_huge_int(path, value) if kind is int else value
        if kind is list:
            return [self.encode(f"{path}/{i}", one) for i, one in enumerate(value)]
        if isinstance(value, dict):
            return self._encode_mapping(path, value)
        if kind.__name__ in _SEQUENCES and kind in {tuple, set, frozenset}:
            return {kind.__name__: self.encode(path, list(value))}
        if kind is torch.Size:
            return {"size": list(value)}
        return self._encode_leaf(path, value)

    def _encode_mapping(self, path: str, value: dict[Any, Any]) -> Any:
        kind = _KINDS.get(type(value))
        if kind is not None:
            return {kind: self._encode_pairs(path, value)}
        if type(value) is defaultdict and value.default_factory in _FACTORY_NAMES:
            factory = _FACTORY_NAMES[value.default_factory]
            return {"defaults": [factory, self._encode_pairs(path, value)]}
        raise _unsupported_type_error(path, value)

    def _encode_pairs(self, path: str, value: dict[Any, Any]) -> list[Any]:
        return [
            [self.encode(f"{path}/{key}", key), self.encode(f"{path}/{key}", one)]
            for key, one in value.items()
        ]

    def _encode_leaf(self, path: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(path, value)
        if isinstance(value, np.generic) and _has_exact_dtype_name(value.dtype):
            return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        if type(value) is np.ndarray and _has_exact_dtype_name(value.dtype):
            flat = torch.frombuffer(bytearray(value.tobytes() or b"\0"), dtype=torch.uint8)
            axes = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
            if not value.transpose(axes).flags.c_contiguous:
                axes = list(range(value.ndim))
            return {"array": [self.add_tensor(path, flat), value.dtype.str, list(value.shape), axes]}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if type(value) is complex:
            return {"complex": [value.real, value.imag]}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        raise _unsupported_type_error(path, value)

    def _encode_tensor(self, path: str, value: torch.Tensor) -> Any:
        key = self.add_tensor(path, value)
        if isinstance(value, DTensor) and self.place is not None:
            return {"sharded": [key, self.place(path, value)]}
        if isinstance(value, DTensor) or value.is_contiguous():
            return {"tensor": key}
        # Sums and fused optimizers take the elements in the order in which they lie in memory.
        return {"strided": [key, list(torch.empty_like(value, device="meta").stride())]}


def _has_exact_dtype_name(dtype: np.dtype[Any]) -> bool:
    """Return whether a type of numpy is all in its name; that of a structure has no fields."""
    return not dtype.hasobject and np.dtype(dtype.str) == dtype


def _refuse_huge_int(path: str, value: int) -> int:
    if value.bit_length() > _MOST_BITS:
        raise StateError(
            f"the state at {path} is a whole number of {value.bit_length()} bits; allowed are {_MOST_BITS}",
            hint="turn it into bytes in state_dict, and back in load_state_dict",
        )
    return value


def _refuse_unsavable_tensor(path: str, tensor: torch.Tensor) -> None:
    kinds = {
        "a quantized tensor": tensor.is_quantized,
        "a tensor on the meta device, which has no values": tensor.is_meta,
        f"a tensor with the layout {tensor.layout}": tensor.layout is not torch.strided,
    }
    found = next((kind for kind, holds in kinds.items() if holds), None)
    if found is not None:
        raise StateError(
            f"the state at {path} is {found}; allowed are dense tensors of numbers",
            hint="turn it into dense ones in state_dict, such as its values and indices, and back "
            "in load_state_dict",
        )


def _describe_type(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"a {type(value).__module__}.{type(value).__qualname__} of {value.dtype}"
    name = f"a {type(value).__module__}.{type(value).__qualname__}"
    return f"{name} of {value.default_factory!r}" if isinstance(value, defaultdict) else name


def _unsupported_type_error(path: str, value: Any) -> StateError:
    return StateError(
        f"the state at {path} is {_describe_type(value)}; allowed are numbers, strings, bytes, "
        "None, lists, tuples, sets, dictionaries (also OrderedDict, Counter, and defaultdict of a "
        "built-in type), tensors and numpy arrays, but no subclasses of these",
        hint="turn it into one of these in state_dict, and back in load_state_dict",
    )


def encode_state(path: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a state by key, all below `path`, including its skeleton.

    Raises StateError for a value that has no exact form.
    """
    encoder = StateEncoder()
    skeleton = encoder.encode(path, value)
    return {path + SKELETON: json_to_byte_tensor(skeleton)} | encoder.tensors


def json_to_byte_tensor(skeleton: Any) -> torch.Tensor:
    """Return JSON as a tensor of bytes."""
    text = json.dumps(skeleton, separators=(",", ":"))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def json_from_byte_tensor(packed: torch.Tensor) -> Any:
    """Return the JSON in a tensor of bytes."""
    return json.loads(packed.numpy().tobytes())


def encoded_dict_items(skeleton: Any) -> dict[Any, Any]:
    """Return the encoded values of an encoded dictionary, by its keys, which are plain values.

    Example: `encoded_dict_items(StateEncoder().encode("x", {"a": (1, 2)}))` is `{"a": {"tuple": [1,
    2]}}`.
    """
    ((_, pairs),) = skeleton.items()
    return dict(pairs)


def find_tensor_keys(value: Any) -> Iterator[str]:
    """Yield the keys of the tensors and arrays in an encoded value."""
    for kind, content in _find_encoded_tensors(value):
        yield content if kind == "tensor" else content[0]


def find_tensor_placements(value: Any) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the keys of the tensors in an encoded value, each with what `place` returned."""
    for kind, content in _find_encoded_tensors(value):
        if kind == "tensor":
            yield content, None
        elif kind != "array":
            yield content[0], content[1] if kind == "sharded" else None


def _find_encoded_tensors(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _find_encoded_tensors(item)
    elif isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind in _KEYED:
            yield kind, content
        elif kind in _NESTED:
            yield from _find_encoded_tensors(content)


def decode_value(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that was encoded, from its JSON and the tensors by key."""
    if isinstance(value, list):
        return [decode_value(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode_value(content, tensors))
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](_decode_pairs(content, tensors))
    if kind == "defaults":
        return defaultdict(_FACTORIES[content[0]], _decode_pairs(content[1], tensors))
    return _decode_array(content, tensors) if kind == "array" else _LEAVES[kind](content, tensors)


def _decode_pairs(pairs: list[Any], tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    return {decode_value(key, tensors): decode_value(one, tensors) for key, one in pairs}


def _decode_array(content: list[Any], tensors: Mapping[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    key, dtype, shape, axes = content
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    data = tensors[key].numpy().tobytes()[:count]
    array = np.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    return array.transpose(axes).copy(order="C").transpose(np.argsort(axes))


def _decode_strided_tensor(content: list[Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    key, strides = content
    tensor = tensors[key]
    if isinstance(tensor, DTensor):  # cut like the parameter that it belongs to
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


_LEAVES: Mapping[str, Callable[[Any, Mapping[str, torch.Tensor]], Any]] = {
    "tensor": lambda key, tensors: tensors[key],
    "sharded": lambda content, tensors: tensors[content[0]],
    "strided": _decode_strided_tensor,
    "scalar": lambda content, _: np.frombuffer(base64.b64decode(content[1]), content[0])[0],
    "bytes": lambda content, _: base64.b64decode(content),
    "complex": lambda content, _: complex(*content),
    "dtype": lambda name, _: getattr(torch, name),
    "device": lambda name, _: torch.device(name),
}

_KEYED = frozenset({"tensor", "sharded", "strided", "array"})
_NESTED = frozenset({*_SEQUENCES, *_MAPPINGS, "defaults"})
