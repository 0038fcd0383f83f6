"""The slots of a shared job, each with its own devices and CPUs, for one run after another.

What the scheduler gave the job is divided among them. What cannot be divided (CPUs that the job is
not bound to, no devices) is shared by all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpckit.model.plan import SharedJobSpec
from hpckit.observe.gpu_choice import SLOT_GPUS
from hpckit.values import dataclass

DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""The variables in which Slurm lists a job's devices: numbers, or UUIDs for MIG instances."""

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot: the variables that differ from the job's, and its CPUs (empty: the job's)."""

    number: int
    variables: Mapping[str, str]
    cpus: tuple[int, ...] = ()


def divide_job_into_slots(
    spec: SharedJobSpec,
    environ: Mapping[str, str],
    cpus: Sequence[int],
    core_of: Callable[[int], tuple[int, int]] | None = None,
) -> tuple[Slot, ...]:
    """Return the slots of a job with this environment and these CPUs."""
    shares = _divide_cpus_among_slots(spec, environ, sorted(cpus, key=core_of or read_socket_and_core))
    return tuple(
        Slot(number=number, variables=_build_slot_environment(spec, environ, number), cpus=shares[number])
        for number in range(spec.slots)
    )


def read_socket_and_core(cpu: int) -> tuple[int, int]:
    """Return socket and core of a CPU, to sort siblings next to each other."""
    topology = _CPUS / f"cpu{cpu}" / "topology"
    try:
        socket = int((topology / "physical_package_id").read_text())
        return socket, int((topology / "core_id").read_text())
    except (OSError, ValueError):
        return 0, cpu


def _build_slot_environment(spec: SharedJobSpec, environ: Mapping[str, str], number: int) -> dict[str, str]:
    per_run = spec.each.tasks_per_node * spec.each.cpus_per_task
    counts = {"SLURM_CPUS_ON_NODE": str(per_run), "SLURM_CPUS_PER_TASK": str(spec.each.cpus_per_task)}
    lists = {name: environ[name].split(",") for name in DEVICE_LISTS if environ.get(name)}
    devices = {name: ",".join(_select_slot_devices(spec, given, number)) for name, given in lists.items()}
    if lists:  # the slot's sampler has to know which of the job's GPUs are its own
        places = [str(place) for place in range(max(map(len, lists.values())))]
        devices[SLOT_GPUS] = ",".join(_select_slot_devices(spec, places, number))
    return counts | devices


def _select_slot_devices(spec: SharedJobSpec, given: Sequence[str], number: int) -> Sequence[str]:
    if spec.runs_per_gpu > 1:
        return [given[number // spec.runs_per_gpu % len(given)]]
    share = len(given) // spec.slots
    return given[number * share : (number + 1) * share] if share else given


def _divide_cpus_among_slots(
    spec: SharedJobSpec, environ: Mapping[str, str], cpus: Sequence[int]
) -> Sequence[tuple[int, ...]]:
    """Return the CPUs of each slot; empty if the job is not bound to exactly its CPUs.

    On a node that does not bind jobs, all jobs would otherwise use the same first CPUs.
    """
    given = environ.get("SLURM_CPUS_ON_NODE", "")
    share = len(cpus) // spec.slots
    if given != str(len(cpus)) or not share:
        return ((),) * spec.slots
    return [tuple(cpus[place * share : (place + 1) * share]) for place in range(spec.slots)]
