"""Promises of the facts of a machine, from real files, real processes and a fake driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpckit.model.environment.facts import DriverFacts, FolderRole
from hpckit.observe.gpus import read_driver_and_gpus
from hpckit.observe.machine import (
    count_granted_cpus,
    read_distribution_name,
    read_file_systems,
    read_granted_memory,
    read_networks_usable_by_nccl,
    read_process_limits,
)
from hpckit.observe.torch_probe import probe_torch
from hpckit.testing.nvml.fake_nvml import DRIVER, FakeNvml

MIB = 2**20


def put(root: Path, files: dict[str, str]) -> Path:
    """Write these files below a root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_is_the_least_of_all_cgroups_around(tmp_path: Path) -> None:
    """A limit of the job counts although the step below it has none."""
    cgroups = "sys/fs/cgroup/job_1"
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job_1/step_0\n",
            "proc/meminfo": "MemTotal:  1048576 kB\n",
            f"{cgroups}/step_0/memory.max": "max\n",
            f"{cgroups}/memory.max": str(512 * MIB),
        },
    )
    assert read_granted_memory(root) == 512 * MIB
    (root / cgroups / "memory.max").write_text("max")
    assert read_granted_memory(root) == 1024 * MIB
    assert read_granted_memory(tmp_path / "nothing") is None


def test_memory_of_the_older_cgroups_is_known(tmp_path: Path) -> None:
    """Version 1 has a file of its own, where a huge number means no limit."""
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/slurm/job_1\n",
            "proc/meminfo": "MemTotal:  1048576 kB\n",
            "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": str(256 * MIB),
        },
    )
    assert read_granted_memory(root) == 256 * MIB
    limit = root / "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes"
    limit.write_text("9223372036854771712")
    assert read_granted_memory(root) == 1024 * MIB


def test_cpus_follow_affinity_and_quota(tmp_path: Path) -> None:
    """A quota of half a CPU is half a CPU, whatever the affinity."""
    files = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000"}
    assert count_granted_cpus(put(tmp_path, files)) == 0.5
    (tmp_path / "sys/fs/cgroup/a/cpu.max").write_text("max 100000")
    assert count_granted_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_system_and_limits_are_those_of_this_process(tmp_path: Path) -> None:
    """The distribution's own name, and limits as numbers."""
    root = put(tmp_path, {"etc/os-release": 'ID=rocky\nPRETTY_NAME="Rocky Linux 9.4"\n'})
    assert read_distribution_name(root) == "Rocky Linux 9.4"
    assert read_distribution_name(tmp_path / "none") == "Linux"
    limits = read_process_limits()
    assert None not in (limits.nofile, limits.memlock, limits.nproc, limits.stack)


def test_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    """Names with blanks, several mounts above each other, and folders that are not made yet."""
    inner = tmp_path / "my data"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        f"22 21 0:40 / {escaped} rw - nfs4 server:/x rw\n"
        f"23 21 0:41 / {escaped} rw shared:2 master:3 - lustre mgs:/y rw\n"
        "cut off\n"
    )
    folders = {
        FolderRole.output: inner / "not" / "made",
        FolderRole.home: inner,
        FolderRole.project: tmp_path,
    }
    output, home, project = read_file_systems(folders, mounts)
    assert (output.kind, home.kind, project.kind) == ("lustre", "lustre", "ext4")
    assert output.path == str(inner / "not" / "made")
    assert home.writable
    assert home.size_bytes
    assert list(inner.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_not_writable(tmp_path: Path) -> None:
    """Whether a folder can be written is tried, not guessed."""
    tmp_path.chmod(0o500)
    (found,) = read_file_systems({FolderRole.output: tmp_path})
    assert found.writable is False


def test_file_system_of_proc_cannot_be_written() -> None:
    """Where no file can be made, the folder is not said to be writable."""
    (found,) = read_file_systems({FolderRole.output: Path("/proc/self")})
    assert found.kind == "proc"
    assert not found.writable


def test_networks_tell_infiniband_from_efa(tmp_path: Path) -> None:
    """EFA shows ports of InfiniBand, and needs a plugin; a port that is down does not count."""
    root = tmp_path / "root"
    verbs = "sys/class/infiniband"
    put(
        root,
        {
            f"{verbs}/mlx5_0/ports/1/state": "4: ACTIVE\n",
            f"{verbs}/mlx5_1/ports/1/state": "1: DOWN\n",
            f"{verbs}/rdmap0/ports/1/state": "4: ACTIVE\n",
            "drivers/efa/bind": "",
        },
    )
    (root / verbs / "rdmap0/device").mkdir()
    (root / verbs / "rdmap0/device/driver").symlink_to(root / "drivers/efa")
    bare = read_networks_usable_by_nccl({}, root)
    assert (bare.infiniband_ports, bare.efa_devices, bare.net_plugins) == (1, 1, ())
    put(tmp_path, {"lib/libnccl-net.so": "", "lib/libfabric.so.1": ""})
    found = read_networks_usable_by_nccl({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}/lib"}, root)
    assert found.net_plugins == (f"{tmp_path}/lib/libnccl-net.so",)
    assert found.libfabric == f"{tmp_path}/lib/libfabric.so.1"


def probe(tmp_path: Path, module: str | None, *, patience_s: float = 60) -> tuple[object, str, str]:
    """Return what is said of a torch with this text: installed, version, problem."""
    if module is not None:
        put(tmp_path, {"torch/__init__.py": module})
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    facts = probe_torch(environ, patience_s=patience_s)
    return facts.installed, facts.version or "", facts.problem


@pytest.mark.training
def test_torch_that_is_here_is_described() -> None:
    """The real torch of these tests, imported in another process."""
    torch = pytest.importorskip("torch")
    facts = probe_torch(os.environ)
    assert (facts.installed, facts.version) == (True, torch.__version__)
    assert facts.cuda == (torch.version.cuda or "")
    assert facts.import_s is not None
    assert facts.import_s > 0


def test_torch_that_breaks_is_a_fact_and_no_crash(tmp_path: Path) -> None:
    """An import may raise, print, crash or hang: the answer says which."""
    chatty = "print('hello'); __version__ = '9'\nclass version: cuda = '13.0'\n"
    assert probe(tmp_path, chatty) == (True, "9", "")
    raised = probe(tmp_path, "raise ImportError('libcudart.so.13: cannot open')")
    assert raised == (True, "", "ImportError: libcudart.so.13: cannot open")
    crashed = probe(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert crashed[2] == "its import was ended by SIGSEGV"
    left = probe(tmp_path, "import os; os._exit(3)")
    assert left[2] == "its import ended with exit code 3"
    hung = probe(tmp_path, "import time; time.sleep(60)", patience_s=1)
    assert hung[2] == "its import took longer than 1 s"


def test_torch_that_is_absent_is_not_unknown(tmp_path: Path) -> None:
    """A Python without torch says so; one that does not start says nothing about torch."""
    absent = "import importlib.util as u; o = u.find_spec\n"
    absent += "u.find_spec = lambda name, *a: None if name == 'torch' else o(name, *a)\n"
    put(tmp_path, {"sitecustomize.py": absent})
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert probe_torch(environ, python=sys.executable).installed is False
    assert probe_torch(environ, python="/no/python").installed is None


def test_driver_and_gpus_come_from_nvml(nvml: FakeNvml) -> None:
    """Versions, memory, capability and MIG of each GPU of the job, and of no other one."""
    nvml.profile("h100", gpus=4)
    found = read_driver_and_gpus({})
    assert (found.version, found.cuda) == (DRIVER, "13.0")
    told = [(gpu.name, gpu.memory_bytes, gpu.capability, gpu.mig) for gpu in found.gpus or ()]
    assert told == [("NVIDIA H100 80GB HBM3", 80 * 2**30, "9.0", False)] * 4
    hidden = read_driver_and_gpus({"CUDA_VISIBLE_DEVICES": "1,3"})
    assert len(hidden.gpus or ()) == 2
    nvml.profile("a100", mig=(3, 4))
    (divided,) = read_driver_and_gpus({}).gpus or ()
    assert (divided.capability, divided.mig) == ("8.0", True)


def test_driver_that_is_absent_is_not_unknown(nvml: FakeNvml, tmp_path: Path) -> None:
    """No driver means no GPU; a broken one, or that of AMD, leaves all unknown."""
    assert read_driver_and_gpus({}) == DriverFacts(version="", gpus=())
    put(tmp_path, {"dev/kfd": ""})
    assert read_driver_and_gpus({}, tmp_path) == DriverFacts()
    nvml.profile("a100")
    nvml.change({"return.nvmlInitWithFlags": 18})
    assert read_driver_and_gpus({}) == DriverFacts()


def test_call_that_an_old_driver_lacks_is_unknown(nvml: FakeNvml) -> None:
    """What cannot be answered is None, and the rest is still told."""
    nvml.profile("a100")
    nvml.change({"driver.cuda": 0, "g0.capability": 0, "g0.mig.able": 0})
    found = read_driver_and_gpus({})
    assert (found.version, found.cuda) == (DRIVER, None)
    assert [(gpu.capability, gpu.mig) for gpu in found.gpus or ()] == [(None, None)]
