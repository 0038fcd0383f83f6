"""Promises of observe.host and what it reads: files as kernels write them, below a root."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpckit.model.telemetry.vocabulary import HostCounter, HostGauge
from hpckit.observe.host import (
    HostReader,
    JobCgroup,
    RaplReader,
    find_job_cgroup,
    read_node_pressure_stall_times,
)
from hpckit.observe.sysfs import find_infiniband_ports, sum_infiniband_ports

PRESSURE = """\
some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000
full avg10=0.00 avg60=0.00 avg300=0.00 total=500000
"""


def write(root: Path, files: dict[str, object]) -> None:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_this_host_is_measured() -> None:
    """On any machine with a kernel of Linux: shares are shares, memory adds up."""
    reader = HostReader()
    reader.read_sample()
    until = time.monotonic() + 0.2  # the kernel counts CPU time in hundredths of a second
    while time.monotonic() < until:
        sum(range(1000))
    sample = reader.read_sample()
    assert 0 <= sample.gauges[HostGauge.cpu_share] <= 1
    assert sample.gauges[HostGauge.memory_available_bytes] > 1e6
    assert sample.counters[HostCounter.network_rx_bytes] >= 0


def test_a_host_that_hides_its_files_is_measured_without_them(tmp_path: Path) -> None:
    """In a container without /sys there is less, and no error."""
    sample = HostReader(tmp_path).read_sample()
    assert HostGauge.memory_used_bytes in sample.gauges
    hidden = {HostCounter.infiniband_tx_bytes, HostCounter.job_cpu_s, HostCounter.cpu_energy_j}
    assert not hidden & set(sample.counters)


def test_pressure_of_the_node_is_in_seconds(tmp_path: Path) -> None:
    """`some` is pressure, `full` is a stall; a CPU has no stall."""
    write(tmp_path, {f"proc/pressure/{name}": PRESSURE for name in ("cpu", "memory", "io")})
    assert read_node_pressure_stall_times(tmp_path) == {
        HostCounter.cpu_pressure_s: 2.5,
        HostCounter.memory_pressure_s: 2.5,
        HostCounter.memory_stall_s: 0.5,
        HostCounter.io_pressure_s: 2.5,
        HostCounter.io_stall_s: 0.5,
    }
    assert read_node_pressure_stall_times(tmp_path / "old kernel") == {}


def test_the_job_is_slurms_cgroup_around_this_process(tmp_path: Path) -> None:
    """All tasks of the job count, not those of this step alone."""
    job = "system.slice/slurmstepd.scope/job_42"
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"0::/{job}/step_0/user/task_1",
            f"sys/fs/cgroup/{job}/cgroup.procs": "",
            f"sys/fs/cgroup/{job}/cpu.stat": "usage_usec 7000000\nthrottled_usec 1000000",
            f"sys/fs/cgroup/{job}/memory.current": 4096,
            f"sys/fs/cgroup/{job}/memory.stat": "anon 1024\nfile 3072",
            f"sys/fs/cgroup/{job}/memory.events": "low 0\nmax 3\noom 1\noom_kill 1",
            f"sys/fs/cgroup/{job}/memory.pressure": PRESSURE,
            f"sys/fs/cgroup/{job}/io.stat": "8:0 rbytes=100 wbytes=7 rios=1\n8:16 rbytes=11",
        },
    )
    folder = find_job_cgroup(tmp_path)
    assert folder is not None
    sample = JobCgroup(folder).read_usage()
    assert sample.gauges == {HostGauge.job_memory_bytes: 4096, HostGauge.job_memory_anonymous_bytes: 1024}
    assert sample.counters == {
        HostCounter.job_cpu_s: pytest.approx(7),
        HostCounter.job_throttled_s: pytest.approx(1),
        HostCounter.job_memory_limit_hits: 3,
        HostCounter.job_oom_kills: 1,
        HostCounter.job_memory_pressure_s: 2.5,
        HostCounter.job_read_bytes: 111,
        HostCounter.job_written_bytes: 7,
    }


def test_cgroup_version_one_is_no_job(tmp_path: Path) -> None:
    """Its files say other things: better none than wrong ones."""
    write(tmp_path, {"proc/self/cgroup": "4:memory:/slurm/uid_0/job_42\n0::/"})
    assert find_job_cgroup(tmp_path) is None


def test_infiniband_is_the_sum_of_its_ports(tmp_path: Path) -> None:
    """Data are counted in words of four bytes; a port that is down is no active one."""
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = f"sys/class/infiniband/{device}/ports/1"
        counters = {"port_xmit_data": 100, "port_rcv_data": 50, "symbol_error": 1, "link_downed": 2}
        write(tmp_path, {f"{port}/counters/{name}": count for name, count in counters.items()})
        write(tmp_path, {f"{port}/state": state})
    sample = sum_infiniband_ports(find_infiniband_ports(tmp_path))
    assert sample.gauges == {HostGauge.infiniband_ports_active: 1}
    assert sample.counters == {
        HostCounter.infiniband_tx_bytes: 800,
        HostCounter.infiniband_rx_bytes: 400,
        HostCounter.infiniband_errors: 2,
        HostCounter.infiniband_links_downed: 4,
    }
    assert sum_infiniband_ports(find_infiniband_ports(tmp_path / "none")).counters == {}


def test_energy_of_processors_never_wraps_around(tmp_path: Path) -> None:
    """The register does, within minutes; what is told only grows."""
    zone = "sys/class/powercap/intel-rapl:0"
    limits: dict[str, object] = {"max_energy_range_uj": 10_000_000, "energy_uj": 9_000_000}
    write(tmp_path, {f"{zone}/{name}": value for name, value in limits.items()})
    write(tmp_path, {f"{zone}/name": "package-0"})
    write(tmp_path, {f"{zone}/intel-rapl:0:0/{name}": value for name, value in limits.items()})
    write(tmp_path, {f"{zone}/intel-rapl:0:0/name": "dram"})
    reader = RaplReader(tmp_path)
    write(tmp_path, {f"{zone}/energy_uj": 1_000_000})
    expected = {HostCounter.cpu_energy_j: pytest.approx(2), HostCounter.dram_energy_j: 0}
    assert reader.sum_package_joules() == expected
    write(tmp_path, {f"{zone}/energy_uj": 4_000_000})
    assert reader.sum_package_joules()[HostCounter.cpu_energy_j] == pytest.approx(5)
