"""Promises of the rules about environments: each finds its case, and not the one just below it."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.model.environment.facts import (
    AskedOfNode,
    ClockOffset,
    DriverFacts,
    EnvironmentComparison,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
    GpuFacts,
    NetworkFacts,
    ProcessLimits,
    PythonFacts,
    SlurmFacts,
    TorchFacts,
)
from hpckit.model.finding import Severity
from hpckit.model.plain import from_plain, to_plain
from hpckit.planning.compatibility.cuda import supports_compute_capability
from hpckit.planning.compatibility.judge import find_environment_problems

GIB = 2**30
TOKEN = "t"  # noqa: S105  # of a file, no secret
PYTHON = PythonFacts(version="3.11.7", executable="/env/bin/python", hpckit="0.1.0")
TORCH = TorchFacts(
    installed=True, version="2.13.0", cuda="12.8", architectures=("sm_80", "sm_90", "compute_90")
)
GPU = GpuFacts(name="NVIDIA H100", memory_bytes=80 * GIB, capability="9.0", mig=False)
DRIVER = DriverFacts(version="580.65.06", cuda="13.0", gpus=(GPU,) * 4)
UNKNOWN = EnvironmentFacts(
    host="n1", at=datetime(2026, 1, 1, tzinfo=UTC), system="Linux", kernel="6", python=PYTHON
)


def folder(role: FolderRole, **given: Any) -> FileSystemFacts:
    """Return a shared file system with plenty of everything, but for what is given."""
    known: dict[str, Any] = {
        "path": f"/{role.name}",
        "kind": "nfs4",
        "size_bytes": 1000 * GIB,
        "free_bytes": 500 * GIB,
        "inodes": 10_000,
        "free_inodes": 5_000,
        "writable": True,
    }
    return FileSystemFacts(role=role, **{**known, **given})


GOOD = replace(
    UNKNOWN,
    cpus=8.0,
    memory_bytes=64 * GIB,
    torch=TORCH,
    driver=DRIVER,
    network=NetworkFacts(infiniband_ports=2, efa_devices=0),
    limits=ProcessLimits(nofile=65536, memlock=-1, nproc=-1, stack=8 << 20),
    file_systems=tuple(folder(role) for role in FolderRole),
    slurm=SlurmFacts(version="24.11", container_image=True),
    token=TOKEN,
)
ASKED = AskedOfNode(nodes=2, gpus=4, memory_bytes=64 * GIB, needs_torch=True)


def judged(
    *, asked: AskedOfNode = ASKED, here: EnvironmentFacts = GOOD, **changes: Any
) -> list[tuple[str, str]]:
    """Return level and fact of what is found of a good node with these changes."""
    clock = changes.pop("clock", ClockOffset(least_s=-1, most_s=5))
    node = replace(GOOD, **changes)
    found = find_environment_problems(
        EnvironmentComparison(here=here, node=node, asked=asked, clock=clock, token=TOKEN)
    )
    assert all(one.message and one.hint for one in found)
    return [(one.severity.value, one.key) for one in found]


def variables(**given: str) -> dict[str, Any]:
    """Return the change that sets these variables."""
    return {"variables": given}


def with_folder(role: FolderRole, **given: Any) -> dict[str, Any]:
    """Return the change of one folder."""
    others = tuple(system for system in GOOD.file_systems if system.role is not role)
    return {"file_systems": (*others, folder(role, **given))}


def driver(**given: Any) -> dict[str, Any]:
    """Return the change of the driver."""
    return {"driver": replace(DRIVER, **given)}


def torch(**given: Any) -> dict[str, Any]:
    """Return the change of torch, on the node."""
    return {"torch": replace(TORCH, **given)}


OUTPUT, SHM, HOME = FolderRole.output, FolderRole.shared_memory, FolderRole.home

CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("error", "driver", driver(version="525.60.12", cuda="11.8"), driver(version="525.60.13")),
    ("error", "driver", driver(version="525.60.12", cuda=None), driver(version="525.60", cuda="12")),
    (
        "error",
        "driver",
        {**torch(cuda="13.0"), **driver(version="575.9", cuda="12.9")},
        {**torch(cuda="13.0"), **driver(version="580.1", cuda=None)},
    ),
    (
        "error",
        "driver",
        {**torch(cuda="11.8"), **driver(version="450.80.01", cuda=None)},
        {**torch(cuda="11.8"), **driver(version="450.80.02", cuda=None)},
    ),
    (
        "error",
        "torch architectures",
        driver(gpus=(replace(GPU, capability="7.5"),) * 4),
        driver(gpus=(replace(GPU, capability="12.0"),) * 4),  # by its PTX
    ),
    ("error", "torch CUDA", torch(cuda="", architectures=None), torch(cuda=None)),
    ("error", "torch", torch(installed=False, version=None), torch(installed=None, version=None)),
    ("error", "torch", torch(problem="ImportError: libcudart"), torch(problem="")),
    (
        "warning",
        "torch",
        torch(version=None, problem="its import took longer than 60 s", timed_out=True),
        torch(version=None, problem="", timed_out=False),
    ),
    ("error", "GPUs", driver(gpus=(GPU,) * 3), driver(gpus=None)),
    ("error", "GPUs", driver(version="", cuda=None, gpus=()), driver(gpus=(GPU,) * 4)),
    (
        "error",
        "hpckit",
        {"python": replace(PYTHON, hpckit="0.2.0")},
        {"python": replace(PYTHON, executable="/other/python")},
    ),
    ("warning", "Python", {"python": replace(PYTHON, version="3.12.1")}, {"python": PYTHON}),
    ("warning", "torch", torch(version="2.12.0"), torch(version=None)),
    ("error", OUTPUT, {"token": None}, {"token": "t"}),
    ("error", OUTPUT, {"token": "other"}, {"token": "t"}),
    ("error", OUTPUT, with_folder(OUTPUT, writable=False), with_folder(OUTPUT, writable=None)),
    (
        "warning",
        OUTPUT,
        with_folder(OUTPUT, free_bytes=10 * GIB - 1),
        with_folder(OUTPUT, free_bytes=10 * GIB),
    ),
    ("warning", HOME, with_folder(HOME, free_bytes=GIB - 1), with_folder(HOME, free_bytes=GIB)),
    ("warning", HOME, with_folder(HOME, free_inodes=99), with_folder(HOME, free_inodes=100)),
    ("warning", HOME, with_folder(HOME, kind="xfs"), with_folder(HOME, kind="lustre")),
    ("warning", SHM, with_folder(SHM, size_bytes=GIB - 1), with_folder(SHM, size_bytes=GIB)),
    ("warning", "memory", {"memory_bytes": 64 * GIB - 1}, {"memory_bytes": None}),
    ("warning", "memory", {"memory_bytes": 0}, {"memory_bytes": 64 * GIB}),
    (
        "warning",
        "limit nofile",
        {"limits": replace(GOOD.limits, nofile=4095)},
        {"limits": replace(GOOD.limits, nofile=4096)},
    ),
    (
        "warning",
        "limit memlock",
        {"limits": replace(GOOD.limits, memlock=65536)},
        {"limits": replace(GOOD.limits, memlock=65536), "network": NetworkFacts(infiniband_ports=0)},
    ),
    ("warning", "NCCL_IB_DISABLE", variables(NCCL_IB_DISABLE="1"), variables(NCCL_IB_DISABLE="0")),
    (
        "error",
        "NCCL_SOCKET_IFNAME",
        variables(NCCL_SOCKET_IFNAME="=lo"),
        variables(NCCL_SOCKET_IFNAME="^lo,docker"),
    ),
    ("warning", "NCCL_P2P_DISABLE", variables(NCCL_P2P_DISABLE="1"), variables(NCCL_P2P_DISABLE="")),
    (
        "warning",
        "NCCL plugins",
        {"network": NetworkFacts(efa_devices=4)},
        {"network": NetworkFacts(efa_devices=4, net_plugins=("/opt/libnccl-net.so",))},
    ),
    (
        "warning",
        "clock",
        {"clock": ClockOffset(least_s=2.1, most_s=9)},
        {"clock": ClockOffset(least_s=2.0, most_s=9)},
    ),
    (
        "warning",
        "clock",
        {"clock": ClockOffset(least_s=-60, most_s=-2.1)},
        {"clock": ClockOffset(least_s=-60, most_s=-2.0)},
    ),
    ("warning", "old pynvml", {"python": replace(PYTHON, old_pynvml="11.5")}, {"python": PYTHON}),
]


def test_good_pair_gives_no_finding() -> None:
    """Two machines that agree and have all that was asked for are not complained about."""
    assert judged() == []


@pytest.mark.parametrize(("level", "fact", "bad", "fine"), CASES)
def test_rule_finds_its_case_and_not_the_one_below(
    level: str, fact: str, bad: dict[str, Any], fine: dict[str, Any]
) -> None:
    """What breaks is found with its level under the name of the fact; what just suffices is not."""
    assert judged(**bad) == [(level, fact)]
    assert judged(**fine) == []


def test_torch_that_is_too_old_is_an_error() -> None:
    """Also if both sides have the same: hpckit's checkpoints do not work with it."""
    facts = replace(UNKNOWN, torch=TorchFacts(installed=True, version="2.8.1+cu128"), token=TOKEN)
    compared = EnvironmentComparison(here=facts, node=facts, asked=ASKED, token=TOKEN)
    (found,) = [one for one in find_environment_problems(compared) if one.key == "torch"]
    assert (found.severity, "need 2.9 or newer" in found.message) == (Severity.error, True)


@pytest.mark.parametrize("clock", [None, ClockOffset(least_s=-1e6, most_s=1e6)])
def test_unknown_gives_no_finding(clock: ClockOffset | None) -> None:
    """Where nothing is known of both sides nothing is concluded."""
    bare = replace(UNKNOWN, token=TOKEN)
    compared = EnvironmentComparison(here=bare, node=bare, asked=ASKED, clock=clock, token=TOKEN)
    assert find_environment_problems(compared) == ()
    for field in fields(EnvironmentFacts):
        if field.name not in {"host", "at", "system", "kernel", "python", "v", "token"}:
            assert judged(**{field.name: getattr(UNKNOWN, field.name)}) == [], field.name


def test_level_follows_from_what_is_asked_for() -> None:
    """What a run does not need is a warning: GPUs that nobody asked for, torch for a command."""
    none = AskedOfNode()
    assert judged(asked=none, **torch(installed=False, version=None)) == [("warning", "torch")]
    assert judged(asked=none, **torch(cuda="", architectures=None)) == [("warning", "torch CUDA")]
    old = driver(version="450.1", cuda=None)
    assert judged(asked=none, **old) == [("warning", "driver")]
    assert judged(asked=none, **driver(gpus=())) == []
    assert judged(asked=none, **variables(NCCL_SOCKET_IFNAME="lo")) == []
    assert judged(asked=none, **variables(NCCL_P2P_DISABLE="1")) == []


def test_difference_that_is_asked_for_is_no_finding() -> None:
    """With cluster.python the node has another Python and torch on purpose."""
    other = {"python": replace(PYTHON, version="3.12.1"), **torch(version="2.12.0")}
    assert judged(asked=replace(ASKED, own_python=True), **other) == []
    assert len(judged(**other)) == 2


def test_home_of_the_same_host_is_no_finding() -> None:
    """A local disk of the same type and size on both sides may be one that both see."""
    local = with_folder(HOME, kind="ext4")
    assert judged(here=replace(GOOD, **local), **local) == []
    larger = with_folder(HOME, kind="ext4", size_bytes=2000 * GIB)
    assert judged(here=replace(GOOD, **local), **larger) == [("warning", HOME)]


def test_one_machine_is_judged_alone() -> None:
    """Without a node, the rules of one machine are about this one."""
    alone = replace(GOOD, torch=replace(TORCH, installed=False))
    found = find_environment_problems(EnvironmentComparison(here=alone, node=None, asked=ASKED))
    assert [one.key for one in found] == ["torch"]


def test_divided_gpus_are_not_counted() -> None:
    """Of GPUs in MIG mode a job has parts: their number says nothing."""
    assert judged(**driver(gpus=(replace(GPU, mig=True),))) == []


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ("8.9", ("sm_80",), True),
        ("8.0", ("sm_86",), False),
        ("9.0", ("sm_80",), False),
        ("9.0", ("sm_90a",), True),
        ("9.1", ("sm_90a",), False),
        ("12.1", ("sm_120f",), True),
        ("12.0", ("compute_90",), True),
        ("8.0", ("compute_90",), False),
        ("12.0", ("sm_120",), True),
        ("9.0", ("gfx90a", "?"), False),
    ],
)
def test_architectures_follow_the_rules_of_cuda(
    capability: str, built: tuple[str, ...], *, runs: bool
) -> None:
    """Binaries run within a major version, PTX on later ones, special code on its own GPU."""
    assert supports_compute_capability(capability, built) is runs


def test_facts_survive_json() -> None:
    """What a node writes is what the other side reads."""
    assert from_plain(EnvironmentFacts, to_plain(GOOD)) == GOOD
