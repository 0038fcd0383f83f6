"""Promises of the OOM counts: on files as the kernel writes them, and on a real kill."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import run_to_end

from hpckit.runtime.agent.exhausted import OomKills, explain_oom_kill, read_oom_kill_counts

GROUP = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


class Machine:
    """A /proc and a /sys/fs/cgroup of our own."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"

    def member(self, text: str) -> None:
        """Say which groups this process is in."""
        self._write(self.proc / "self" / "cgroup", text)

    def v2(self, group: str, kills: int) -> None:
        """Write a memory.events file."""
        self._write(
            self.cgroup / group.lstrip("/") / "memory.events",
            f"low 0\nhigh 0\nmax 31\noom 2\noom_kill {kills}\noom_group_kill 0\n",
        )

    def v1(self, group: str, kills: int) -> None:
        """Write a memory.oom_control file."""
        self._write(
            self.cgroup / "memory" / group.lstrip("/") / "memory.oom_control",
            f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
        )

    def host(self, kills: int) -> None:
        """Write a vmstat file."""
        self._write(self.proc / "vmstat", f"pgfault 12\noom_kill {kills}\n")

    def read(self) -> OomKills:
        """Read all of it."""
        return read_oom_kill_counts(self.proc, self.cgroup)

    def _write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without any file."""
    return Machine(tmp_path)


def test_kill_in_the_own_group_is_told_with_the_group(machine: Machine) -> None:
    """On cgroup v2 the words name the group and how many were killed."""
    machine.member(f"0::{GROUP}\n")
    machine.v2(GROUP, 1)
    before = machine.read()
    machine.v2(GROUP, 2)
    assert explain_oom_kill(before, machine.read()) == f"cgroup {GROUP} counted 1 OOM kill"


def test_kill_of_another_step_is_not_ours(machine: Machine) -> None:
    """A group above counts other steps' kills too: when the own one counted none, none is ours."""
    machine.member(f"0::{GROUP}\n")
    for group in (GROUP, "/system.slice/slurmstepd.scope/job_7"):
        machine.v2(group, 0)
    machine.host(0)
    before = machine.read()
    machine.v2("/system.slice/slurmstepd.scope/job_7", 1)
    machine.host(1)
    assert explain_oom_kill(before, machine.read()) is None


def test_group_above_speaks_where_the_own_has_no_memory_controller(machine: Machine) -> None:
    """Without a count of its own the nearest group above is asked, and said to be shared."""
    machine.member(f"0::{GROUP}\n")
    machine.v2("/system.slice", 3)
    before = machine.read()
    machine.v2("/system.slice", 5)
    said = explain_oom_kill(before, machine.read())
    assert said == "cgroup /system.slice counted 2 OOM kills (it counts other processes too)"


def test_v1_memory_hierarchy_is_read(machine: Machine) -> None:
    """On cgroup v1 the memory controller's own path counts, not that of the others."""
    machine.member("9:cpu:/other\n4:memory:/slurm/uid_0/job_7/step_0/task_0\n0::/\n")
    machine.v1("/slurm/uid_0/job_7/step_0/task_0", 0)
    before = machine.read()
    machine.v1("/slurm/uid_0/job_7/step_0/task_0", 2)
    said = explain_oom_kill(before, machine.read())
    assert said == "cgroup /slurm/uid_0/job_7/step_0/task_0 counted 2 OOM kills"


def test_container_that_sees_its_group_as_the_root_is_read(machine: Machine) -> None:
    """A path that only exists outside the container falls back to the mount's root."""
    machine.member("4:memory:/docker/0123abcd\n")
    machine.v1("/", 0)
    before = machine.read()
    machine.v1("/", 1)
    assert "counted 1 OOM kill" in (explain_oom_kill(before, machine.read()) or "")


def test_path_above_the_namespace_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    """A group told as /../x is not looked up outside the cgroup mount."""
    machine.member("0::/../x\n")
    machine.cgroup.mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "memory.events").write_text("oom_kill 1\n")
    assert machine.read() == ()


def test_whole_host_is_the_last_resort(machine: Machine) -> None:
    """Without any group's count the host's speaks, and says that it is everybody's."""
    machine.host(4)
    before = machine.read()
    machine.host(5)
    said = explain_oom_kill(before, machine.read())
    assert said == "the whole host counted 1 OOM kill (it counts other processes too)"


def test_nothing_readable_is_no_evidence(machine: Machine) -> None:
    """Missing and broken files raise nothing and show nothing."""
    assert explain_oom_kill(machine.read(), machine.read()) is None
    machine.member("what is this\n4:memory\n0::\n")
    machine.host(1)
    (machine.proc / "vmstat").write_text("oom_kill many\n")
    assert machine.read() == ()


def test_count_that_was_not_there_before_is_no_evidence(machine: Machine) -> None:
    """A count without an earlier one to compare with says nothing of the time between."""
    machine.member(f"0::{GROUP}\n")
    before = machine.read()
    machine.v2(GROUP, 7)
    assert explain_oom_kill(before, machine.read()) is None


def _own_group() -> tuple[Path, str]:
    """Return where a group with a memory limit can be made, and the limit's file; skips if none."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if os.access(v1 / "memory.limit_in_bytes", os.W_OK):
        return v1, "memory.limit_in_bytes"
    controllers = v2 / "cgroup.subtree_control"
    if os.access(controllers, os.W_OK) and "memory" in controllers.read_text().split():
        return v2, "memory.max"
    pytest.skip("making a cgroup with a memory limit needs root and a memory controller")


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """Make a real group of at most 32 MB, and remove it afterwards."""
    parent, limit = _own_group()
    group = parent / f"hpckit-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(32 * 2**20))
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            with contextlib.suppress(OSError):
                (group / swap).write_text("0" if "max" in swap else str(32 * 2**20))
        yield group
    finally:
        group.rmdir()


IN_GROUP = """
import os, signal, subprocess, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from hpckit.runtime.agent.exhausted import explain_oom_kill, read_oom_kill_counts
for code in (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "bytearray(200_000_000)"):
    before = read_oom_kill_counts()
    print(subprocess.run([sys.executable, "-S", "-c", code]).returncode)
    print(explain_oom_kill(before, read_oom_kill_counts()))
"""


def test_kernel_kill_is_told_apart_from_any_other_kill(limited_group: Path) -> None:
    """Of two children dead by SIGKILL, the one out of memory is known by the kernel's count."""
    done = run_to_end([sys.executable, "-c", IN_GROUP, str(limited_group)], check=True)
    killed = str(-signal.SIGKILL)
    other, starved = done.stdout.splitlines()[:2], done.stdout.splitlines()[2:]
    assert other == [killed, "None"]
    assert starved == [killed, f"cgroup /{limited_group.name} counted 1 OOM kill"]
