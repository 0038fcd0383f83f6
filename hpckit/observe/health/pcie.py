"""What a GPU's PCIe link does now: GPUs lower it while they are idle, so ask during a transfer."""

from __future__ import annotations

from functools import partial

from hpckit.model.preflight.health import PcieLink
from hpckit.observe.nvml.job_gpus import opened_nvml, tried


def read_pcie_link(uuid: str) -> PcieLink | None:
    """Return the link of the GPU with this UUID; None if NVML cannot say.

    ```python
    read_pcie_link("GPU-3f2a...")  # PcieLink(generation=5, generation_max=5, width=16, ...)
    ```
    """
    with opened_nvml() as nvml:
        if nvml is None:
            return None
        handle = tried(nvml, partial(nvml.nvmlDeviceGetHandleByUUID, uuid))
        if handle is None:
            return None
        return PcieLink(
            generation=tried(nvml, partial(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)),
            generation_max=tried(nvml, partial(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)),
            width=tried(nvml, partial(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)),
            width_max=tried(nvml, partial(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)),
        )
