"""Promises about CPUs next to GPUs: those of /sys, in the order of ranks; unknown is not bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.observe.gpus import parse_cpu_list, read_gpu_cpus
from hpckit.planning.jobs.cpu_binding import plan_cpu_binding
from hpckit.testing.nvml.fake_nvml import FakeNvml

CPUS = st.sets(st.integers(0, 15)).map(frozenset)


@pytest.fixture
def root(tmp_path: Path, nvml: FakeNvml) -> Path:
    """Return a /sys in which the first of two GPUs is next to CPUs 0 to 3, the other to 4 to 7."""
    nvml.profile("h100", gpus=2)
    for address, cpus in (("0000:01:00.0", "0-3"), ("0000:02:00.0", "4-5,6,7")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{cpus}\n")
    return tmp_path


FIRST, SECOND = frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})


def test_cpus_are_those_of_the_gpus_in_the_order_of_ranks(root: Path, nvml: FakeNvml) -> None:
    """CUDA_VISIBLE_DEVICES orders them, by number or by UUID, and leaves others out."""
    assert read_gpu_cpus({}, root) == (FIRST, SECOND)
    assert read_gpu_cpus({"CUDA_VISIBLE_DEVICES": "1,0"}, root) == (SECOND, FIRST)
    assert read_gpu_cpus({"CUDA_VISIBLE_DEVICES": f"{nvml.uuid(1)},{nvml.uuid(0)}"}, root) == (SECOND, FIRST)
    assert read_gpu_cpus({"CUDA_VISIBLE_DEVICES": "1"}, root) == (SECOND,)


def test_unknown_cpus_are_empty(root: Path, nvml: FakeNvml) -> None:
    """A virtual machine may show no PCI devices, and a node no driver."""
    assert read_gpu_cpus({}, root / "nothing") == (frozenset(), frozenset())
    nvml.unload_driver()
    assert read_gpu_cpus({}, root) == ()


@pytest.mark.parametrize(
    ("text", "cpus"), [("", ()), ("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("a-b", ()), ("3-", (3,))]
)
def test_lists_of_the_kernel_are_read(text: str, cpus: tuple[int, ...]) -> None:
    """What is no list is nothing."""
    assert parse_cpu_list(text) == frozenset(cpus)


@given(gpus=st.lists(CPUS, max_size=6), allowed=CPUS, ranks=st.integers(1, 6))
def test_ranks_are_bound_to_cpus_of_the_job_next_to_their_gpu(
    gpus: list[frozenset[int]], allowed: frozenset[int], ranks: int
) -> None:
    """Never to others; not at all without one known GPU for each; those too far away are named."""
    binding = plan_cpu_binding(gpus, allowed, ranks)
    assert len(binding.cpus) == ranks
    if len(gpus) != ranks:
        assert set(binding.cpus) == {frozenset()}
        assert not binding.far
        return
    for place, (near, bound) in enumerate(zip(gpus, binding.cpus, strict=True)):
        assert bound <= near & allowed
        assert (place in binding.far) == bool(near and not near & allowed)
        if bound:
            assert bound == near & allowed
    if binding.scarce:
        assert set(binding.cpus) == {frozenset()}


SOCKETS = (frozenset(range(32)), frozenset(range(32, 64)))


@pytest.mark.parametrize(
    ("allowed", "counts", "scarce"),
    [
        (range(64), [32, 32, 32, 32], ()),
        (range(36), [0, 0, 0, 0], (2, 3)),  # 32 and 4: bound, two ranks would have 2 CPUs each
        (range(33), [0, 0, 0, 0], (2, 3)),
        ([*range(18), *range(32, 49)], [18, 18, 17, 17], ()),  # 35: 8 each
        (range(32), [0, 0, 0, 0], ()),  # no CPU next to two of the GPUs: those are far
    ],
)
def test_no_rank_is_left_with_less_than_its_share(
    allowed: Sequence[int], counts: list[int], scarce: tuple[int, ...]
) -> None:
    """Slurm may give a job a whole socket and little of the other: all ranks would wait there."""
    gpus = [SOCKETS[0], SOCKETS[0], SOCKETS[1], SOCKETS[1]]
    binding = plan_cpu_binding(gpus, allowed, 4)
    assert [len(cpus) for cpus in binding.cpus] == counts
    assert binding.scarce == scarce
