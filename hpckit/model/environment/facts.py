"""What a machine offers to a run (versions, GPUs, networks, links, folders), and two compared.

None is always unknown, and never the same as absent: nothing may be concluded from it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.values import dataclass, field


class FolderRole(StrEnum):
    """What hpckit or a run uses a folder for."""

    output = "output folder"
    """where launches are"""
    project = "project"
    """where the launch was started"""
    checkpoints = "checkpoint folder"
    """where runs keep their state, if that is not their own folder"""
    home = "home"
    """the user's home folder"""
    temporary = "temporary"
    """`$TMPDIR`, else /tmp"""
    shared_memory = "shared memory"
    """the tmpfs through which processes of a node share memory"""


VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """The Python that looked; `old_pynvml` is the version of the deprecated distribution."""

    version: str
    executable: str
    hpckit: str
    old_pynvml: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """The torch of that Python, imported in a process of its own.

    `cuda` is what it is built with, empty for a build without; `architectures` as torch names them
    (`sm_90`, `compute_120`); `nccl_library` is the file that it loaded. `problem` says why it could
    not be imported; `timed_out`: its import was ended, and might have succeeded later.
    """

    installed: bool | None = None
    version: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    nccl_library: str | None = None
    architectures: tuple[str, ...] | None = None
    import_s: float | None = None
    problem: str = ""
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU of the job, as its driver describes it outside of sampling.

    Compute `capability` such as `9.0`, as a text and as a number; `mig`: whether it is divided.
    `memory_used_bytes` is without what the driver reserves. `processes` are the ids of processes
    that compute on it. `ecc_uncorrected` counts memory errors since the driver was loaded.
    `power_limit_w` is what the driver lets it take now.

    `pci` is the address of its slot, `numa` the node of memory next to that. NVLinks are up or
    down. Widths of PCIe are lanes; the most is what GPU and host are both able to. The generation
    is lower while a GPU is idle, the width is not.
    """

    name: str
    uuid: str = ""
    index: int = 0
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    capability: str | None = None
    capability_number: float | None = None
    mig: bool | None = None
    processes: tuple[int, ...] | None = None
    ecc_uncorrected: int | None = None
    troubles: tuple[GpuTrouble, ...] = ()
    power_limit_w: float | None = None
    nvlinks: int | None = None
    nvlinks_down: int | None = None
    pci: str = ""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """NVIDIA's driver, empty without one; the newest CUDA it supports; the GPUs of the job."""

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[GpuFacts, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """Networks that NCCL could use: ports of InfiniBand or RoCE that are up, and EFA devices.

    `net_plugins` are the files of NCCL's network plugins on the library path.
    """

    infiniband_ports: int | None = None
    efa_devices: int | None = None
    net_plugins: tuple[str, ...] = ()
    libfabric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Limits of a rank (ulimit); -1 is unlimited. `memlock` and `stack` in bytes.

    `nofile` is the hard limit, to which agents raise the soft one.
    """

    nofile: int | None = None
    memlock: int | None = None
    nproc: int | None = None
    stack: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemFacts:
    """The file system of a folder; `role` is what hpckit or a run uses the folder for.

    Sizes in bytes. `free_inodes` is None where the file system counts none.
    """

    role: FolderRole
    path: str
    kind: str | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    inodes: int | None = None
    free_inodes: int | None = None
    writable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """Slurm's version, empty without its programs; whether srun starts containers (pyxis)."""

    version: str | None = None
    container_image: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """All that is known of a machine, as seen by a process at a moment.

    `cpus` and `memory_bytes` are granted to the process by affinity and cgroups. `variables` are
    those that change what NCCL, CUDA and OpenMP do; secrets are masked. `token` is the text of the
    token file that the other side wrote into the output folder; None without that file.
    """

    host: str
    at: datetime
    system: str
    kernel: str
    cpus: float | None = None
    memory_bytes: int | None = None
    python: PythonFacts
    torch: TorchFacts = field(default_factory=TorchFacts)
    driver: DriverFacts = field(default_factory=DriverFacts)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    file_systems: tuple[FileSystemFacts, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    slurm: SlurmFacts = field(default_factory=SlurmFacts)
    token: str | None = None
    v: int = VERSION

    def find_file_system(self, role: FolderRole) -> FileSystemFacts | None:
        """Return the file system of this role; None if it was not looked at."""
        return next((system for system in self.file_systems if system.role == role), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfNode:
    """What a run with these overrides asks of a node.

    `nodes` is of the run itself, although one is looked at. `needs_torch`: it is a function, which
    torch's ranks call. `own_python`: `cluster.python` names one, so that a difference is intended.
    `on_cpus`: torch is told to leave GPUs alone.
    """

    nodes: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    needs_torch: bool = False
    own_python: bool = False
    on_cpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the node's clock is ahead of this one, in seconds: somewhere between two bounds.

    The node read its clock after the submission and before its answer was read, so that both bounds
    are certain, whatever the network and the queue did in between.
    """

    least_s: float
    most_s: float

    @property
    def minimum_offset_s(self) -> float:
        """The smallest difference that fits; negative if the node is behind."""
        return max(self.least_s, min(self.most_s, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentComparison:
    """The machine of the user and, if there is another one, the compute node.

    `token` is what was written into the output folder for the node to read.
    """

    here: EnvironmentFacts
    node: EnvironmentFacts | None
    asked: AskedOfNode
    clock: ClockOffset | None = None
    token: str | None = None

    @property
    def facts_of_run_machine(self) -> EnvironmentFacts:
        """The machine that runs would be on."""
        return self.here if self.node is None else self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPort:
    """A port of InfiniBand or RoCE that is up: its rate in Gbit/s, and the NUMA node of its slot.

    A rate of None: the file could not be read.
    """

    name: str
    gbit_per_s: float | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """A real network card that is up; virtual interfaces have no speed, whatever they claim."""

    name: str
    gbit_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLinks:
    """All links of a node, as a process on it sees them; `gpus` is None if unknown."""

    host: str
    gpus: tuple[GpuFacts, ...] | None = None
    ports: tuple[FabricPort, ...] = ()
    interfaces: tuple[NetworkInterface, ...] = ()
    numa_nodes: int | None = None
