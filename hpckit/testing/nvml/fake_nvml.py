"""A GPU for tests: a `libnvidia-ml.so.1` that says what a test tells it to.

It is a real library, compiled from nvml.c with `cc`, so that nvidia-ml-py, and whatever uses it, is
what runs:

    fake = FakeNvml(tmp_path)
    fake.build()
    fake.profile("h100", gpus=8)
    fake.load(0, {0: 0.0, 60: 0.95})          # seconds: load; straight lines between them
    subprocess.run([...], env={**os.environ, **fake.environ})
    fake.xid(0, 79)
    fake.lose(0)

Power, energy, temperature, clocks and hardware counters follow the load. All may be changed while
the process runs; the library looks for changes with every call. `set` changes any key: those of
`profile` for a GPU (`g0.limit_w`), the value of a field (`g0.field.144`), the code that a call
returns (`return.nvmlDeviceGetCount_v2`, `g0.return.nvmlDeviceGetPowerUsage`,
`g0.return.field.82`), and how many seconds it takes (`hang.nvmlDeviceGetClockInfo`).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from hpckit.values import dataclass, field

_GIB = 1024**3
_FIELDS = (3, 4, 5, 6, 74, 75, 77, 79, 94, 138, 139, 142, 143, 144, 145)
"""Fields that Ampere and later have; 83, energy, follows the load."""
_OF_AMPERE = (38, 45, 52, 59)
_OF_HOPPER = (82, 161, 162, 163, 173, 180, 197, 198, 230, 269, 270, 271)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpuProfile:
    """A kind of GPU. `fields` are the numbers of NVML's fields that it supports.

    `capability` is its compute capability without the dot.
    """

    name: str
    memory_bytes: int
    limit_w: int
    idle_w: int
    sm_mhz: int
    memory_mhz: int
    gpm: bool
    capability: int
    fields: tuple[int, ...]
    nvlinks: int = 18
    pcie_generation: int = 5
    pcie_width: int = 16


PROFILES: Mapping[str, FakeGpuProfile] = {
    "a100": FakeGpuProfile(
        name="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * _GIB,
        limit_w=400,
        idle_w=60,
        sm_mhz=1410,
        memory_mhz=1593,
        gpm=False,
        capability=80,
        fields=(*_FIELDS, *_OF_AMPERE, 82),
        nvlinks=12,
        pcie_generation=4,
    ),
    "h100": FakeGpuProfile(
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * _GIB,
        limit_w=700,
        idle_w=70,
        sm_mhz=1980,
        memory_mhz=2619,
        gpm=True,
        capability=90,
        fields=(*_FIELDS, *_OF_HOPPER),
    ),
    "h200": FakeGpuProfile(
        name="NVIDIA H200",
        memory_bytes=141 * _GIB,
        limit_w=700,
        idle_w=75,
        sm_mhz=1980,
        memory_mhz=3201,
        gpm=True,
        capability=90,
        fields=(*_FIELDS, *_OF_HOPPER),
    ),
}

ACTIVITY: Mapping[int, float] = {2: 0.9, 3: 0.4, 5: 0.6, 10: 0.5}
"""At full load, the share of each GPM metric: multiprocessors, warps, tensor cores, memory."""


LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "HPCKIT_FAKE_NVML"
SOURCE = Path(__file__).with_name("nvml.c")
DRIVER = "580.65.06"
CUDA = 13000
"""The newest CUDA that this driver supports, as NVML counts: 1000 times major, 10 times minor."""

_SLICES = 7
_Value = str | float


@dataclass(slots=True)
class FakeNvml:
    """The library and its state, both in `folder`. Until a `profile` is set no driver is loaded.

    With `node`, the GPUs are those of this node of Slurm alone, and have UUIDs of their own; nodes
    share the folder, its library and `environ`.
    """

    folder: Path
    node: str = ""
    state: dict[str, _Value] = field(default_factory=dict)

    @property
    def library(self) -> Path:
        """The file that `build` makes."""
        return self.folder / LIBRARY

    @property
    def file(self) -> Path:
        """The file that the library reads."""
        return self.folder / f"{self.node or 'nvml'}.state"

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to find this library, and its state."""
        state = self.folder if self.node else self.file
        return {"LD_LIBRARY_PATH": str(self.folder), STATE_VARIABLE: str(state)}

    def build(self, *, without: Sequence[str] = ()) -> Path:
        """Compile the library, `without` some functions as an older driver; return its path.

        Raises OSError without a C compiler, CalledProcessError if it fails.
        """
        hidden = "".join(f"{name}; " for name in without)
        script = self.folder / "exports.map"
        script.write_text(f"{{ {f'local: {hidden}' if hidden else ''}}};\n")
        words = ["cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}"]
        words += [f"-Wl,--version-script,{script}"] if hidden else []
        subprocess.run([*words, "-o", self.library, SOURCE], check=True, timeout=120)
        return self.library

    def load_here(self) -> None:
        """Load the library into this process, so that nvidia-ml-py finds it; never undone.

        The state is that of `$HPCKIT_FAKE_NVML`, also if it is set later.
        """
        ctypes.CDLL(str(self.library), mode=os.RTLD_GLOBAL)

    def profile(self, name: str, *, gpus: int = 1, mig: Sequence[int] = ()) -> None:
        """Let the node have GPUs of a kind: `a100`, `h100` or `h200`; idle, and without faults.

        `mig` divides the first one into devices with this many of its seven slices each.
        """
        kind = PROFILES[name]
        self.state = {"driver.loaded": 1, "driver.version": DRIVER, "gpus": gpus, "xids.count": 0}
        self.state |= {"driver.cuda": CUDA}
        self.state |= {"began": time.time(), "generation": 0}
        self.state |= {f"gpm.{number}": share for number, share in ACTIVITY.items()}
        for index in range(gpus):
            self._add_gpu(index, kind)
        if mig:
            self._divide_into_mig_devices(kind, mig)
        self.save()

    def _add_gpu(self, index: int, kind: FakeGpuProfile) -> None:
        facts = {key: value for key, value in asdict(kind).items() if key != "fields"}
        facts |= {"uuid": f"GPU-{uuid5(NAMESPACE_DNS, f'{kind.name} {index}{self.node}')}"}
        facts |= {"pci": f"00000000:{index + 1:02X}:00.0", "memory_reserved_bytes": 600 * 1024**2}
        facts |= {"mig.able": 1, "margin": kind.gpm, "slowdown_c": 89, "shutdown_c": 92}
        facts |= {f"field.{number}": 0 for number in kind.fields}
        self.state |= {f"g{index}.{key}": value for key, value in facts.items()}

    def _divide_into_mig_devices(self, kind: FakeGpuProfile, slices: Sequence[int]) -> None:
        self.state |= {"g0.mig": 1, "g0.mig.count": len(slices)}
        for place, count in enumerate(slices):
            self.state |= {
                f"g0.mig{place}.uuid": f"MIG-{uuid5(NAMESPACE_DNS, f'{kind.name} part {place}')}",
                f"g0.mig{place}.instance": place + 1,
                f"g0.mig{place}.slices": count,
                f"g0.mig{place}.memory_bytes": kind.memory_bytes * count // (_SLICES + 1),
            }

    def set(self, **changes: _Value) -> None:
        """Change keys, with `__` for a dot: `set(g0__memory_used_bytes=1e9)`."""
        self.change({key.replace("__", "."): value for key, value in changes.items()})

    def change(self, changes: Mapping[str, _Value]) -> None:
        """Change keys, by their names."""
        self.state |= changes
        self.save()

    def save(self) -> None:
        """Write the state, as a whole."""
        lines = (f"{key} = {_format_state_value(value)}" for key, value in self.state.items())
        part = self.file.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        part.replace(self.file)

    def load(self, gpu: int, knots: Mapping[float, float], *, part: int | None = None) -> None:
        """Set the time line of the load of a GPU, or of a part of it: seconds to load, 0 to 1."""
        line = " ".join(f"{at:g}:{share:g}" for at, share in sorted(knots.items()))
        inner = "" if part is None else f"mig{part}."
        self.change({f"g{gpu}.{inner}load": line})

    def at(self, seconds: float) -> None:
        """Let the time be this many seconds after the beginning, and stand still."""
        self.set(now=seconds)

    def uuid(self, gpu: int) -> str:
        """Return the UUID of a GPU."""
        return str(self.state[f"g{gpu}.uuid"])

    def xid(self, gpu: int, number: int) -> None:
        """Let an XID error happen on a GPU."""
        count = int(self.state["xids.count"])
        self.change({f"xids.{count}": f"{gpu}:{number}", "xids.count": count + 1})

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off its bus."""
        self.change({f"g{gpu}.lost": 1})

    def find(self, gpu: int) -> None:
        """Let a GPU that was lost be back."""
        self.change({f"g{gpu}.lost": 0})

    def throttle(self, gpu: int, mask: int) -> None:
        """Set the clock reasons of a GPU, as NVML's bits; its clocks fall to a half. 0 ends it."""
        self.change({f"g{gpu}.throttle": mask})

    def unload_driver(self) -> None:
        """Let the driver be gone, as while it is exchanged."""
        self.change({"driver.loaded": 0})

    def load_driver(self) -> None:
        """Load the driver again: programs that used it before must initialise it again."""
        self.change({"driver.loaded": 1, "generation": int(self.state["generation"]) + 1})


def _format_state_value(value: _Value) -> str:
    # Whole numbers in full: counters are beyond the digits of a short float.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else str(value)
