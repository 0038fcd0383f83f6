"""Promises of features.profiling.summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.profiling.summary import TraceError, summarise_trace

SECOND = 1e6


def event(
    name: str, category: str, begin: float, end: float, *, tid: object = 1, pid: object = 1
) -> dict[str, Any]:
    """Return an event of a trace, with times in seconds."""
    took = (end - begin) * SECOND
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": begin * SECOND,
        "dur": took,
        "pid": pid,
        "tid": tid,
    }


def test_kernels_of_several_streams_are_summed_up_by_time_not_by_kernel() -> None:
    """Two streams compute at once, NCCL overlaps one of them, a copy and a hole remain."""
    found = summarise_trace(
        [
            event("ProfilerStep#1", "user_annotation", 0, 5),
            event("ProfilerStep#2", "user_annotation", 5, 10),
            event("ProfilerStep#1", "gpu_user_annotation", 0, 9),
            event("aten::mm", "cpu_op", 0, 9),
            event("gemm", "kernel", 1, 3, pid=0, tid=7),
            event("gemm", "kernel", 2, 4, pid=0, tid=8),
            event("ncclDevKernel_AllReduce_Sum_f32", "kernel", 3.5, 6, pid=0, tid=20),
            event("Memcpy HtoD", "gpu_memcpy", 7, 8, pid=0, tid=9),
            event("elementwise", "kernel", 11, 12, pid=0, tid=7),
        ]
    )
    assert (found.on_gpu, found.steps) == (True, 2)
    assert found.wall_s == pytest.approx(12), "to the end of the last kernel that steps started"
    assert found.compute_s == pytest.approx(4)
    assert found.communication_s == pytest.approx(2.5)
    assert found.overlap_s == pytest.approx(0.5)
    assert found.exposed_s == pytest.approx(2.0)
    assert found.copy_s == pytest.approx(1)
    assert found.idle_s == pytest.approx(12 - 3 - 2 - 1 - 1)
    tops = [(one.name, one.count, round(one.seconds, 6)) for one in found.top]
    assert tops[0] == ("gemm", 2, 4.0)
    assert "aten::mm" not in [name for name, _, _ in tops]


def test_cpu_trace_counts_operators_and_collectives_of_all_threads() -> None:
    """Gloo works in a thread of its own while the main thread computes; own time tops."""
    found = summarise_trace(
        [
            event("ProfilerStep#1", "user_annotation", 0, 10),
            event("aten::linear", "cpu_op", 0, 4),
            event("aten::addmm", "cpu_op", 1, 4),
            event("gloo:all_reduce", "user_annotation", 3, 6, tid=2),
            event("my own range", "user_annotation", 0, 10),
        ]
    )
    assert not found.on_gpu
    assert found.wall_s == pytest.approx(10)
    parts = [found.compute_s, found.communication_s, found.overlap_s, found.idle_s]
    assert parts == pytest.approx([4, 3, 1, 4])
    assert [(one.name, round(one.seconds, 6)) for one in found.top] == [
        ("aten::addmm", 3.0),
        ("gloo:all_reduce", 3.0),
        ("aten::linear", 1.0),
    ]


ODD: list[Mapping[str, Any]] = [
    {},
    {"ph": "X", "name": "aten::mm", "cat": "cpu_op"},
    {"ph": "X", "name": 3, "cat": "cpu_op", "ts": 1, "dur": 1},
    {"ph": "X", "name": "x", "cat": "cpu_op", "ts": math.nan, "dur": 1},
    {"ph": "X", "name": "x", "cat": "cpu_op", "ts": 1, "dur": -1},
    {"ph": "X", "name": "x", "cat": ["cpu_op"], "ts": 1, "dur": "1"},
    {"ph": "i", "name": "x", "cat": "cpu_op", "ts": 1, "dur": 1},
]


def test_trace_without_anything_that_counts_is_an_error() -> None:
    """Events that are odd are left out, and a trace of nothing else has no summary."""
    with pytest.raises(TraceError, match="neither kernels nor operators"):
        summarise_trace(ODD)
    assert summarise_trace([*ODD, event("x", "cpu_op", 0, 1)]).compute_s == pytest.approx(1)


SPANS = st.tuples(
    st.sampled_from(["gemm", "ncclDevKernel_AllGather", "relu"]),
    st.integers(0, 40),
    st.integers(0, 10),
    st.integers(0, 3),
)


@given(st.lists(SPANS, min_size=1, max_size=30))
def test_parts_add_up_to_the_window(spans: list[tuple[str, int, int, int]]) -> None:
    """Compute, exposed communication and idle are the whole; no part is negative."""
    found = summarise_trace(
        event(name, "kernel", begin, begin + took, tid=stream) for name, begin, took, stream in spans
    )
    parts = found.compute_s + found.exposed_s + found.idle_s
    assert parts == pytest.approx(found.wall_s, abs=1e-6)
    assert min(found.compute_s, found.exposed_s, found.idle_s, found.overlap_s) >= -1e-9
