"""The form in which states are kept."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpckit.runtime.checkpoint.encoding import SKELETON, decode_value, encode_state, json_from_byte_tensor
from hpckit.runtime.checkpoint.errors import StateError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
    ),
    max_leaves=20,
)


def _decode_state(path: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    return decode_value(json_from_byte_tensor(tensors[path + SKELETON]), tensors)


@given(PLAIN)
def test_encoding_brings_plain_values_back(value: Any) -> None:
    """Nested plain values come back equal and of the same types."""
    back = _decode_state("x", encode_state("x", value))
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        Counter("aab"),
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        OrderedDict(b=1, a=2),
        {1, 2},
        frozenset({"a"}),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        np.float64(0.1),
        np.int32(-4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_encoding_brings_special_values_back(value: Any) -> None:
    """What optimizers, schedulers and samplers hold besides plain values keeps its type."""
    back = _decode_state("x", encode_state("x", {"a": [value]}))["a"][0]
    assert back == value
    assert type(back) is type(value)


def test_encoding_brings_arrays_and_tensors_back_bitwise() -> None:
    """Arrays and tensors come back in type, shape and bits, also empty and not-a-number ones."""
    tensors = [torch.tensor([math.nan, -0.0]), torch.zeros(0, 3)]
    tensors.append(torch.tensor(2, dtype=torch.int8))
    matrix = np.arange(6, dtype=">u2").reshape(2, 3)
    arrays: tuple[NDArray[Any], ...] = (matrix, np.zeros((0,)), np.array(True))  # noqa: FBT003
    back = _decode_state("x", encode_state("x", {"t": tensors, "a": arrays}))
    for tensor, one in zip(tensors, back["t"], strict=True):
        assert (tensor.dtype, tensor.shape) == (one.dtype, one.shape)
        assert tensor.numpy().tobytes() == one.numpy().tobytes()
    for array, one in zip(arrays, back["a"], strict=True):
        assert (array.dtype, array.shape, array.tobytes()) == (one.dtype, one.shape, one.tobytes())


def test_encoding_keeps_the_order_in_memory() -> None:
    """Sums and fused optimizers take elements as they lie there: another order is other bits."""
    images = torch.randn(4, 3, 5, 7).to(memory_format=torch.channels_last)
    tensors = [images, torch.randn(3, 5).T, torch.randn(6, 4)[::2, ::2], torch.randn(1, 5)]
    matrix = np.arange(24.0).reshape(2, 3, 4)
    arrays = [np.asfortranarray(matrix), matrix.transpose(1, 0, 2), matrix[:, ::2], matrix]
    back = _decode_state("x", encode_state("x", {"t": tensors, "a": arrays}))
    for tensor, one in zip(tensors, back["t"], strict=True):
        assert torch.equal(tensor, one)
        assert one.stride() == torch.empty_like(tensor).stride()
    for array, one in zip(arrays, back["a"], strict=True):
        assert np.array_equal(array, one)
        assert one.strides == array.copy(order="K").strides
        assert one.flags.writeable


def test_encoding_keeps_like_named_tensors_apart() -> None:
    """Different places that spell the same path do not overwrite each other."""
    state = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "#": torch.tensor(3)}
    back = _decode_state("x", encode_state("x", state))
    assert [int(back["a/b"]), int(back["a"]["b"]), int(back["#"])] == [1, 2, 3]


def test_encoding_refuses_what_has_no_exact_form() -> None:
    """An object of another kind is refused when it is saved, by its place and type."""
    with pytest.raises(StateError, match=r"x/a/1 is a _thread\.lock"):
        encode_state("x", {"a": [1, threading.Lock()]})


def test_encoding_keeps_what_a_defaultdict_makes() -> None:
    """A dictionary that makes missing values still does so after a restart."""
    back = _decode_state("x", encode_state("x", defaultdict(int, a=1)))
    back["b"] += 1
    assert back == {"a": 1, "b": 1}


class _Own(dict):  # type: ignore[type-arg]
    """A user's own kind of dictionary."""


@pytest.mark.parametrize(
    "value",
    [
        _Own(a=1),
        type("Sorted", (OrderedDict,), {})(a=1),
        defaultdict(lambda: 7),
        np.ma.MaskedArray([1.0, 2.0], mask=[True, False]),
        np.array([None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_encoding_never_makes_another_type_of_what_is_derived(value: Any) -> None:
    """What is derived from an allowed type would come back as that type: it is refused by name."""
    with pytest.raises(StateError, match=rf"x/a is a .*{type(value).__name__}"):
        encode_state("x", {"a": value})


FIELDS = np.dtype([("a", "<i4"), ("b", "<f4")])


STATES: dict[str, tuple[Any, str]] = {
    "sparse": (torch.eye(3).to_sparse(), "the layout torch.sparse_coo"),
    "meta": (torch.empty(3, device="meta"), "the meta device, which has no values"),
    "fields": (np.zeros(2, FIELDS), "a numpy.ndarray of [('a', '<i4'), ('b', '<f4')]"),
    "a row of fields": (np.zeros(2, FIELDS)[0], "a numpy.void of"),
    "a huge number": (10**5000, "a whole number of 16610 bits"),
}


@pytest.mark.parametrize("name", STATES)
def test_state_without_an_exact_form_is_refused_by_name(name: str) -> None:
    """When it is saved: a checkpoint that cannot be loaded, or changes, is none."""
    value, words = STATES[name]
    with pytest.raises(StateError) as caught:
        encode_state("box", {"inner": {"value": value}})
    assert "the state at box/inner/value is" in caught.value.message
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_quantized_tensor_is_refused_by_name() -> None:
    """Torch writes it, and cannot read it."""
    value = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(StateError, match="box/value is a quantized tensor"):
        encode_state("box", {"value": value})
