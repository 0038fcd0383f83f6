"""Promises of observe.amd, on a fake of amdsmi: no GPU of AMD was ever asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.model.telemetry.vocabulary import GpuCounter, GpuGauge, GpuTrouble, TelemetryEventKind
from hpckit.observe.amd import AmdBackend, open_amd_backend
from hpckit.observe.gpu_choice import GpuChoice, read_gpus_given_to_run

UNSUPPORTED = 2
ALL = GpuChoice(whole_node=True)


class FakeSmiError(Exception):
    """What the fake raises for all of amdsmi's errors."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code

    def get_error_code(self) -> int:
        """Return the code, as amdsmi's exceptions do."""
        return self.code


def fake_amdsmi(answers: dict[str, Any]) -> Any:
    """Return a module with one GPU, whose calls return or raise what `answers` says."""

    def call(name: str) -> Any:
        def answer(*_: Any) -> Any:
            found = answers[name]
            if isinstance(found, Exception):
                raise found
            return found

        return answer

    module = SimpleNamespace(
        AmdSmiException=FakeSmiError,
        AmdSmiLibraryException=FakeSmiError,
        AmdSmiTemperatureType=SimpleNamespace(JUNCTION=1, VRAM=2),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        AmdSmiClkType=SimpleNamespace(GFX=0),
        amdsmi_wrapper=SimpleNamespace(AMDSMI_STATUS_NOT_SUPPORTED=UNSUPPORTED),
    )
    for name in answers:
        setattr(module, name, call(name))
    return module


@pytest.fixture
def answers() -> dict[str, Any]:
    """Return what an MI300X answers, as amdsmi documents it."""
    return {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": ["handle"],
        "amdsmi_get_gpu_device_uuid": "f8ff74a1-0000-1000-80ba-d5d1a6b0cf8c",
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_driver_info": {"driver_version": "6.10"},
        "amdsmi_get_gpu_activity": {"gfx_activity": 80, "umc_activity": "N/A"},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 1024},
        "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 520},
        "amdsmi_get_temp_metric": 61,
        "amdsmi_get_clock_info": {"clk": 2100},
        "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
        "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0},
    }


def test_an_amd_gpu_is_measured_as_any_other(answers: dict[str, Any]) -> None:
    """The same names and units; what is not available is absent."""
    backend = AmdBackend(smi=fake_amdsmi(answers), choice=ALL)
    (sample,) = backend.sample(counters=True)
    assert sample.gauges == {
        GpuGauge.busy_share: 0.8,
        GpuGauge.memory_used_bytes: 1024 * 1024**2,
        GpuGauge.power_w: 520,
        GpuGauge.temperature_c: 61,
        GpuGauge.memory_temperature_c: 61,
        GpuGauge.sm_clock_mhz: 2100,
    }
    assert sample.counters == {
        GpuCounter.energy_j: pytest.approx(30.6),
        GpuCounter.ecc_corrected: 3,
        GpuCounter.ecc_uncorrected: 0,
    }
    (device,) = backend.devices()
    assert (device.name, device.driver) == ("AMD Instinct MI300X", "6.10")


def test_what_an_amd_gpu_refuses_is_not_asked_again(answers: dict[str, Any]) -> None:
    """As with NVML, support is found out once."""
    answers["amdsmi_get_clock_info"] = FakeSmiError(UNSUPPORTED)
    backend = AmdBackend(smi=fake_amdsmi(answers), choice=ALL)
    backend.sample(counters=False)
    answers["amdsmi_get_clock_info"] = {"clk": 2100}
    (sample,) = backend.sample(counters=False)
    assert GpuGauge.sm_clock_mhz not in sample.gauges


def test_an_amd_gpu_without_answers_is_lost(answers: dict[str, Any]) -> None:
    """One event, then a trouble in each sample, until it answers again."""
    backend = AmdBackend(smi=fake_amdsmi(answers), choice=ALL)
    saved = dict(answers)
    answers.update({name: FakeSmiError(1) for name in answers if name != "amdsmi_shut_down"})
    samples = [backend.sample(counters=False)[0] for _ in range(4)]
    assert samples[-1].troubles == {GpuTrouble.lost}
    answers.update(saved)
    backend.sample(counters=False)
    kinds = [event.kind for event in backend.events()]
    assert kinds == [TelemetryEventKind.gpu_lost, TelemetryEventKind.gpu_back]


def test_amdsmi_is_opened_where_it_is_installed(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes without ROCm have no GPUs of AMD; others open them."""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert open_amd_backend(ALL) == (None, "")
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi(answers))
    backend, note = open_amd_backend(ALL)
    assert backend is not None
    assert "never run on AMD hardware" in note
    backend.close()


def test_amd_gpus_of_others_are_not_measured(answers: dict[str, Any]) -> None:
    """By number, or by the name that ROCr has for a GPU: its serial number."""
    answers["amdsmi_get_processor_handles"] = ["first", "second"]
    answers["amdsmi_get_gpu_asic_info"] = {"asic_serial": "0xAB12"}

    def indices(environ: dict[str, str]) -> list[int]:
        choice = read_gpus_given_to_run({"SLURM_JOB_ID": "7", **environ})
        return [device.index for device in AmdBackend(smi=fake_amdsmi(answers), choice=choice).devices()]

    assert indices({}) == []
    assert indices({"ROCR_VISIBLE_DEVICES": "1"}) == [1]
    assert indices({"ROCR_VISIBLE_DEVICES": "GPU-ab12"}) == [0, 1], "both have this serial here"
    assert indices({"ROCR_VISIBLE_DEVICES": "GPU-cd34"}) == []
