"""Promises of what a node says of its links, from real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.model.environment.facts import FabricPort, NetworkInterface
from hpckit.observe.machine import read_node_and_gpu_links
from hpckit.testing.nvml.fake_nvml import FakeNvml

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def put(root: Path, files: dict[str, str]) -> Path:
    """Write these files of /sys below a root."""
    for name, text in files.items():
        path = root / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_fabric_ports_that_are_up_have_their_rate(tmp_path: Path) -> None:
    """A port that is down promises nothing; a rate that cannot be read is unknown."""
    devices = "class/infiniband"
    root = put(
        tmp_path,
        {
            f"{devices}/mlx5_0/ports/1/state": "4: ACTIVE\n",
            f"{devices}/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            f"{devices}/mlx5_0/device/numa_node": "1\n",
            f"{devices}/mlx5_1/ports/1/state": "1: DOWN\n",
            f"{devices}/mlx5_1/ports/1/rate": "10 Gb/sec (4X)\n",
            f"{devices}/mlx5_2/ports/1/state": "4: ACTIVE\n",
            f"{devices}/mlx5_2/ports/1/rate": "fast\n",
            f"{devices}/mlx5_2/device/numa_node": "-1\n",
            "devices/system/node/node0/cpulist": "0-15",
            "devices/system/node/node1/cpulist": "16-31",
        },
    )
    links = read_node_and_gpu_links("n1", NO_GPU, root)
    assert links.ports == (FabricPort(name="mlx5_0/1", gbit_per_s=400.0, numa=1), FabricPort(name="mlx5_2/1"))
    assert links.numa_nodes == 2


def test_virtual_interfaces_have_no_speed(tmp_path: Path) -> None:
    """A veth claims 10 Gbit/s; cards without a cable say -1."""
    net = "class/net"
    root = put(
        tmp_path,
        {
            f"{net}/eth0/device/vendor": "0x15b3",
            f"{net}/eth0/operstate": "up\n",
            f"{net}/eth0/speed": "25000\n",
            f"{net}/eth1/device/vendor": "0x15b3",
            f"{net}/eth1/operstate": "up\n",
            f"{net}/eth1/speed": "-1\n",
            f"{net}/eth2/device/vendor": "0x15b3",
            f"{net}/eth2/operstate": "down\n",
            f"{net}/veth0/operstate": "up\n",
            f"{net}/veth0/speed": "10000\n",
        },
    )
    links = read_node_and_gpu_links("n1", NO_GPU, root)
    assert links.interfaces == (NetworkInterface(name="eth0", gbit_per_s=25.0), NetworkInterface(name="eth1"))


def test_nothing_known_is_no_link(tmp_path: Path) -> None:
    """Where /sys shows nothing, nothing is promised."""
    links = read_node_and_gpu_links("n1", NO_GPU, tmp_path)
    assert (links.ports, links.interfaces, links.numa_nodes) == ((), (), None)


def test_gpus_tell_their_nvlinks_and_slots(nvml: FakeNvml, tmp_path: Path) -> None:
    """Of the job's GPUs alone; what this driver does not say is unknown."""
    nvml.profile("h100", gpus=2)
    nvml.change({"g1.nvlinks_down": 2, "g1.pcie_width_now": 8, "g1.pcie_width": 16})
    put(tmp_path, {"bus/pci/devices/0000:02:00.0/numa_node": "1\n"})
    first, second = read_node_and_gpu_links("n1", {}, tmp_path).gpus or ()
    assert (first.name, first.capability_number) == ("NVIDIA H100 80GB HBM3", 9.0)
    assert (first.nvlinks, first.nvlinks_down, first.numa) == (18, 0, None)
    assert (first.pcie_generation, first.pcie_generation_max) == (5, 5)
    assert (first.pcie_width, first.pcie_width_max) == (16, 16)
    assert (second.nvlinks, second.nvlinks_down, second.numa) == (16, 2, 1)
    assert (second.pcie_width, second.pcie_width_max) == (8, 16)
    (only,) = read_node_and_gpu_links("n1", {"CUDA_VISIBLE_DEVICES": "1"}, tmp_path).gpus or ()
    assert only == second
    nvml.change({"g0.nvlinks": 0, "g0.pcie_width": 0, "g0.capability": 0})
    bare = (read_node_and_gpu_links("n1", {}, tmp_path).gpus or ())[0]
    assert (bare.capability, bare.nvlinks, bare.nvlinks_down, bare.pcie_width) == (None, 0, 0, None)


@pytest.mark.usefixtures("nvml")
def test_gpus_without_a_driver_are_unknown(tmp_path: Path) -> None:
    """Not absent: AMD's would not show here."""
    assert read_node_and_gpu_links("n1", {}, tmp_path).gpus is None
