"""Promises of observe.nvml: the real nvidia-ml-py, on a library that does what tests say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata

import pynvml
import pytest

from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GpuCounter,
    GpuGauge,
    GpuSample,
    GpuTrouble,
    TelemetryEventKind,
    build_placeholder_uuid,
)
from hpckit.observe.gpu_choice import GpuChoice, read_gpus_given_to_run
from hpckit.observe.gpu_thread import GpuShares
from hpckit.observe.nvml.backend import NvmlBackend, open_nvml_backend
from hpckit.observe.nvml.bindings import describe_deprecated_pynvml
from hpckit.testing.nvml.fake_nvml import FakeNvml

GIB = 1024**3


@dataclass
class World:
    """A backend with its clock."""

    fake: FakeNvml
    time: float = 0.0
    opened: list[NvmlBackend] = field(default_factory=list)

    def open(self, *, gpm: bool = True, choice: GpuChoice | None = None) -> NvmlBackend:
        """Open the GPUs of the fake."""
        choice = choice or GpuChoice(whole_node=True)
        backend = NvmlBackend(nvml=pynvml, gpm=gpm, choice=choice, monotonic=lambda: self.time)
        backend.open()
        self.opened.append(backend)
        return backend


@pytest.fixture
def world(nvml: FakeNvml) -> Iterator[World]:
    """Yield the world; close what was opened in it."""
    world = World(nvml)
    yield world
    for backend in world.opened:
        backend.close()


def taken(backend: NvmlBackend, fake: FakeNvml, *, upto: float = 10.0) -> tuple[GpuSample, ...]:
    """Return the second of two samples, the first at 0 s."""
    fake.at(0)
    backend.sample(counters=False)
    fake.at(upto)
    return backend.sample(counters=True)


def test_hopper_tells_load_power_and_activity(world: World) -> None:
    """Every gauge is in the unit of its name, shares from 0 to 1, reserved memory is no use."""
    world.fake.profile("h100")
    world.fake.load(0, {0: 0.5})
    world.fake.set(g0__memory_used_bytes=40 * GIB)
    (sample,) = taken(world.open(), world.fake)
    assert sample.uuid == world.fake.uuid(0)
    assert sample.gauges == {
        GpuGauge.busy_share: 1.0,
        GpuGauge.memory_busy_share: 0.3,
        GpuGauge.memory_used_bytes: 40 * GIB,
        GpuGauge.temperature_c: 50,
        GpuGauge.temperature_margin_c: 39,
        GpuGauge.memory_temperature_c: 0,
        GpuGauge.power_w: 385,
        GpuGauge.power_limit_w: 700,
        GpuGauge.sm_clock_mhz: 1980,
        GpuGauge.memory_clock_mhz: 2619,
        GpuGauge.graphics_share: 1.0,
        GpuGauge.sm_share: pytest.approx(0.45),
        GpuGauge.sm_occupancy_share: pytest.approx(0.2),
        GpuGauge.tensor_share: pytest.approx(0.3),
        GpuGauge.dram_share: pytest.approx(0.25),
    }
    assert sample.counters[GpuCounter.energy_j] == pytest.approx(3850)


def test_counters_have_the_units_of_their_names(world: World) -> None:
    """Nanoseconds, millijoules and KiB of NVML become seconds, joules and bytes."""
    world.fake.profile("h100")
    fields = {74: 3 * 10**9, 269: 2 * 10**9, 3: 7, 138: 5, 143: 2, 197: 123, 163: 4}
    world.fake.change({f"g0.field.{number}": value for number, value in fields.items()})
    (sample,) = taken(world.open(), world.fake)
    wanted = {
        GpuCounter.power_capped_s: 3,
        GpuCounter.software_thermal_s: 2,
        GpuCounter.ecc_corrected: 7,
        GpuCounter.nvlink_tx_bytes: 5 * 1024,
        GpuCounter.rows_remapped_uncorrected: 2,
        GpuCounter.pcie_tx_bytes: 123,
        GpuCounter.nvlink_crc_errors: 4,
        GpuCounter.xids: 0,
    }
    assert {name: sample.counters[name] for name in wanted} == wanted


def test_counters_are_left_out_unless_asked_for(world: World) -> None:
    """Most samples ask for gauges alone."""
    world.fake.profile("h100")
    (sample,) = world.open().sample(counters=False)
    assert sample.gauges
    assert not sample.counters


def test_ampere_lacks_what_it_cannot_tell(world: World) -> None:
    """What a GPU does not support is absent: no zero, no error; and its device says so."""
    world.fake.profile("a100")
    backend = world.open()
    (sample,) = taken(backend, world.fake)
    missing = {GpuGauge.sm_share, GpuGauge.tensor_share, GpuGauge.temperature_margin_c}
    assert not missing & set(sample.gauges)
    assert GpuCounter.pcie_tx_bytes not in sample.counters
    assert GpuCounter.nvlink_crc_errors in sample.counters
    (device,) = backend.devices()
    assert (device.name, device.memory_bytes) == ("NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert GpuGauge.power_w in device.supported
    assert not missing & set(device.supported)


@pytest.mark.parametrize("code", [3, 4, 13], ids=["unsupported", "permission", "unknown call"])
def test_a_call_that_is_refused_is_not_asked_again(world: World, code: int) -> None:
    """Support is found out once, call by call."""
    world.fake.profile("h100")
    world.fake.change({"g0.return.nvmlDeviceGetPowerUsage": code})
    backend = world.open()
    (before,) = backend.sample(counters=False)
    world.fake.change({"g0.return.nvmlDeviceGetPowerUsage": 0})
    (after,) = backend.sample(counters=False)
    assert GpuGauge.power_w not in before.gauges
    assert GpuGauge.power_w not in after.gauges
    assert GpuGauge.temperature_c in after.gauges


def test_a_call_that_fails_for_now_is_asked_again(world: World) -> None:
    """An unknown error of one call costs one value of one sample."""
    world.fake.profile("h100")
    backend = world.open()
    world.fake.change({"g0.return.nvmlDeviceGetPowerUsage": 999})
    (failed,) = backend.sample(counters=False)
    world.fake.change({"g0.return.nvmlDeviceGetPowerUsage": 0})
    (again,) = backend.sample(counters=False)
    assert GpuGauge.power_w not in failed.gauges
    assert GpuGauge.power_w in again.gauges


def test_clock_reasons_are_named(world: World) -> None:
    """NVML's bits become words."""
    world.fake.profile("h100")
    world.fake.load(0, {0: 1})
    world.fake.throttle(0, 0x4 | 0x40)
    (sample,) = world.open().sample(counters=False)
    assert sample.reasons == {ClockReason.power_cap, ClockReason.hardware_thermal}


def test_troubles_are_named(world: World) -> None:
    """A pending remap, and what the driver advises."""
    world.fake.profile("h100")
    world.fake.change({"g0.field.144": 1, "g0.field.230": 2})
    (sample,) = world.open().sample(counters=False)
    assert sample.troubles == {GpuTrouble.remap_pending, GpuTrouble.advised_reboot}


def test_xids_are_told_once_with_their_gpu(world: World) -> None:
    """An XID becomes an event, and is counted; one from before the sampler began is not told."""
    world.fake.profile("h100", gpus=2)
    world.fake.xid(0, 13)
    backend = world.open()
    world.fake.xid(1, 79)
    _, sample = backend.sample(counters=True)
    (event,) = backend.events()
    assert (event.kind, event.uuid, event.code) == (TelemetryEventKind.xid, world.fake.uuid(1), 79)
    assert sample.counters[GpuCounter.xids] == 1
    backend.sample(counters=False)
    assert backend.events() == ()


def test_a_lost_gpu_is_told_and_the_others_go_on(world: World) -> None:
    """A GPU off its bus is one event, then a trouble in each sample; it may come back."""
    world.fake.profile("h100", gpus=2)
    backend = world.open()
    world.fake.lose(0)
    samples = {sample.uuid: sample for sample in backend.sample(counters=True)}
    lost = samples[world.fake.uuid(0)]
    assert not lost.gauges
    assert lost.troubles == {GpuTrouble.lost}
    assert samples[world.fake.uuid(1)].gauges
    assert [event.kind for event in backend.events()] == [TelemetryEventKind.gpu_lost]
    world.time = 61
    assert len(backend.sample(counters=False)) == 2
    assert backend.events() == ()
    world.fake.find(0)
    world.time = 1000
    assert all(sample.gauges for sample in backend.sample(counters=False))
    assert [event.kind for event in backend.events()] == [TelemetryEventKind.gpu_back]


def test_a_gpu_that_only_fails_counts_as_lost(world: World) -> None:
    """Some lost GPUs answer every call with an unknown error."""
    world.fake.profile("a100")
    backend = world.open()
    calls = [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]
    calls.append("nvmlDeviceGetMemoryInfo_v2")
    world.fake.change({f"g0.return.{name}": 999 for name in calls})
    (sample,) = backend.sample(counters=False)
    assert sample.troubles == {GpuTrouble.lost}


def test_a_driver_reload_is_survived(world: World) -> None:
    """Without a driver there are no samples; it is looked for after growing pauses."""
    world.fake.profile("h100")
    backend = world.open()
    world.fake.unload_driver()
    assert backend.sample(counters=False) == ()
    world.time = 6
    assert backend.sample(counters=False) == ()
    world.fake.load_driver()
    world.time = 8
    assert backend.sample(counters=False) == ()
    world.time = 20
    assert len(backend.sample(counters=False)) == 1
    kinds = [event.kind for event in backend.events()]
    assert kinds == [TelemetryEventKind.driver_lost, TelemetryEventKind.driver_reloaded]


def test_a_reload_between_two_samples_is_noticed(world: World) -> None:
    """A driver that was exchanged knows nothing of who used the one before."""
    world.fake.profile("h100")
    backend = world.open()
    world.fake.load_driver()
    backend.sample(counters=False)
    world.time = 5
    assert len(backend.sample(counters=False)) == 1
    kinds = [event.kind for event in backend.events()]
    assert kinds == [TelemetryEventKind.driver_lost, TelemetryEventKind.driver_reloaded]


def test_mig_devices_have_rows_of_their_own(world: World) -> None:
    """Memory and activity are of the part; power and energy of the whole."""
    world.fake.profile("h100", mig=(3, 4))
    world.fake.load(0, {0: 0.5}, part=1)
    world.fake.set(g0__mig1__memory_used_bytes=5 * GIB)
    backend = world.open()
    whole, first, second = taken(backend, world.fake)
    assert GpuGauge.power_w in whole.gauges
    assert GpuGauge.busy_share not in whole.gauges
    assert first.gauges[GpuGauge.sm_share] == 0
    assert second.gauges[GpuGauge.sm_share] == pytest.approx(0.45)
    assert second.gauges[GpuGauge.memory_used_bytes] == 5 * GIB
    assert not second.counters
    parts = [device for device in backend.devices() if device.parent == world.fake.uuid(0)]
    assert [part.slices for part in parts] == [3, 4]
    assert second.uuid == parts[1].uuid


def test_job_with_mig_devices_measures_those_and_no_others(world: World) -> None:
    """Each of several jobs on one GPU has its own part, with the row of the whole GPU beside it."""
    world.fake.profile("h100", gpus=2, mig=(3, 4))
    every = world.open().devices()
    mine = next(one for one in every if one.parent == world.fake.uuid(0) and one.slices == 4)
    backend = world.open(choice=read_gpus_given_to_run({"CUDA_VISIBLE_DEVICES": mine.uuid}))
    assert [device.uuid for device in backend.devices()] == [world.fake.uuid(0), mine.uuid]
    assert [one.uuid for one in taken(backend, world.fake)] == [world.fake.uuid(0), mine.uuid]
    assert world.open(choice=read_gpus_given_to_run({"CUDA_VISIBLE_DEVICES": "MIG-none"})).devices() == ()
    whole = next(device for device in backend.devices() if device.parent is None)
    shares = GpuShares(notes=None, by_parts=True)
    shares.count_gpu_seconds_of_run(backend.devices(), 1.0)
    assert shares.count_gpu_seconds_of_run(backend.devices(), 8.0) == {
        whole.uuid: pytest.approx(mine.slices or 0)
    }


def test_a_gpu_of_someone_else_is_no_lost_gpu(world: World) -> None:
    """A GPU that the job may not open is left out, without a word."""
    world.fake.profile("h100", gpus=2)
    world.fake.change({"g1.return.nvmlDeviceGetHandleByIndex_v2": 4})
    backend = world.open()
    assert len(backend.sample(counters=False)) == 1
    assert backend.events() == ()


@pytest.mark.parametrize(
    ("environ", "lost"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, 5),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "5"}, 5),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, 5),
    ],
)
def test_another_jobs_lost_gpu_is_not_this_jobs(world: World, environ: dict[str, str], lost: int) -> None:
    """It is in no sample, and NVML is not initialised anew because of it."""
    world.fake.profile("h100", gpus=8)
    world.fake.lose(lost)
    chosen = {name: value.replace("GPU-0", world.fake.uuid(0)) for name, value in environ.items()}
    backend = world.open(choice=read_gpus_given_to_run(chosen))
    first = backend.devices()
    world.time = 10000
    assert [one.uuid for one in backend.sample(counters=True)] == [world.fake.uuid(0)]
    assert backend.events() == ()
    assert backend.devices()[0] is first[0], "found anew"


def test_a_gpu_that_was_lost_from_the_beginning_comes_back_as_itself(world: World) -> None:
    """Else it stays lost by its number for good, and counts as a second GPU."""
    world.fake.profile("h100", gpus=2)
    world.fake.lose(1)
    backend = world.open()
    lost = {one.uuid: one.troubles for one in backend.sample(counters=True)}
    assert lost[build_placeholder_uuid(1)] == {GpuTrouble.lost}
    world.fake.find(1)
    world.time = 1000
    found = {one.uuid: one.troubles for one in backend.sample(counters=True)}
    assert found == {world.fake.uuid(0): frozenset(), world.fake.uuid(1): frozenset()}
    kinds = [event.kind for event in backend.events()]
    assert kinds == [TelemetryEventKind.gpu_lost, TelemetryEventKind.gpu_back]


@pytest.mark.parametrize("what", ["name", "uuid"])
def test_text_that_is_none_takes_one_gpu_at_most_away(world: World, what: str) -> None:
    """The bindings raise UnicodeDecodeError; it is noted, once."""
    world.fake.profile("h100", gpus=2)
    old = f"g0.{what} = ".encode()
    world.fake.file.write_bytes(world.fake.file.read_bytes().replace(old, old + b"\xff"))
    backend = world.open()
    backend.sample(counters=True)
    measured = {one.uuid for one in backend.sample(counters=True)}
    assert world.fake.uuid(1) in measured
    assert len(measured) == (2 if what == "name" else 1)
    assert [event.kind for event in backend.events()] == [TelemetryEventKind.note]


def test_gpm_samples_are_freed(world: World) -> None:
    """Opening and losing GPUs for a month holds no more memory of the driver than once."""
    world.fake.profile("h100", gpus=8)
    for _ in range(40):
        world.open().close()
    samples = taken(world.open(), world.fake)
    assert all(GpuGauge.sm_share in sample.gauges for sample in samples)


def test_a_node_without_a_driver_has_no_gpus(nvml: FakeNvml) -> None:
    """No driver is no error, and no remark."""
    assert not nvml.file.exists()
    assert open_nvml_backend(gpm=True, choice=GpuChoice(whole_node=True)) == (None, "")


def test_a_driver_that_refuses_is_remarked(nvml: FakeNvml) -> None:
    """A library that does not fit the driver is worth a note."""
    nvml.profile("h100")
    nvml.change({"return.nvmlInitWithFlags": 18})
    backend, note = open_nvml_backend(gpm=True, choice=GpuChoice(whole_node=True))
    assert backend is None
    assert "mismatch" in note


def test_the_old_distribution_is_warned_of() -> None:
    """The distribution `pynvml` hides that of nvidia-ml-py, whose module has its name."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert describe_deprecated_pynvml(absent) == ""
    assert "pip uninstall pynvml" in describe_deprecated_pynvml(lambda _: "11.5.0")
