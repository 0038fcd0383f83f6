"""Whether torch, its CUDA, the driver and the GPUs of a node fit together. Pure.

Minimum drivers are those of NVIDIA's minor-version compatibility: a CUDA release runs with every
driver that its major version ever came with, and with newer ones.
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpckit.model.counted import format_count
from hpckit.model.environment.facts import EnvironmentComparison
from hpckit.model.environment.torch_version import (
    OLDEST_TORCH,
    format_version,
    is_version_older,
    suggest_torch_upgrade,
)
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.patterns import lazy_pattern

LEAST_DRIVER: Mapping[int, tuple[int, ...]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""By major version of CUDA, for Linux (the table named above)."""

_ARCHITECTURE = lazy_pattern(r"(sm|compute)_(\d+)(\d)([af]?)\Z")
_INSTALL = "pip install torch with an index of a CUDA build, see https://pytorch.org/get-started"


def find_cuda_problems(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what does not fit on the machine that runs would be on.

    What only GPUs need is an error if GPUs are asked for, else a warning.
    """
    yield from _find_torch_import_problems(comparison)
    if not comparison.asked.on_cpus:
        facts, say = (
            comparison.facts_of_run_machine,
            build_error_finding if comparison.asked.gpus else build_warning_finding,
        )
        if facts.torch.cuda == "" and facts.driver.gpus:
            yield say(
                "torch CUDA",
                "none",
                f"torch {facts.torch.version} on {facts.host} is built without CUDA, and the node "
                f"has {format_count(len(facts.driver.gpus), 'GPU')}: it would compute on CPUs",
                _INSTALL,
            )
        yield from _find_driver_too_old_for_torch(comparison)
        yield from _find_gpus_unsupported_by_torch(comparison)
    yield from _find_missing_gpus(comparison)


def _find_torch_import_problems(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, say = (
        comparison.facts_of_run_machine,
        build_error_finding if comparison.asked.needs_torch else build_warning_finding,
    )
    torch = facts.torch
    if torch.installed is False:
        yield say(
            "torch",
            "none",
            f"{facts.python.executable} on {facts.host} has no torch; functions "
            "(entry_point) need it, commands may use a Python of their own",
            "pip install '.[train]' in hpckit's checkout there, or name a Python that has it: "
            "cluster.python=/path/to/python",
        )
    elif torch.timed_out:
        yield build_warning_finding(
            "torch",
            torch.problem,
            f"whether torch can be imported on {facts.host} is unknown: {torch.problem}",
            "its file system may be slow: look again; if it stays slow, keep the Python of runs on "
            "a faster one (cluster.python)",
        )
    elif torch.problem:
        yield say(
            "torch",
            torch.problem,
            f"torch cannot be imported on {facts.host}: {torch.problem}",
            f"run `{facts.python.executable} -c 'import torch'` there; a module or a library "
            "path may be missing (cluster.modules, cluster.setup)",
        )
    elif is_version_older(torch.version, OLDEST_TORCH):
        yield say(
            "torch",
            torch.version,
            f"torch is {torch.version} on {facts.host}; functions (entry_point) and "
            f"attach() need {format_version(OLDEST_TORCH)} or newer",
            suggest_torch_upgrade(OLDEST_TORCH),
        )


def _find_driver_too_old_for_torch(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, say = (
        comparison.facts_of_run_machine,
        build_error_finding if comparison.asked.gpus else build_warning_finding,
    )
    wanted, found = (_parse_version_numbers(facts.torch.cuda), _parse_version_numbers(facts.driver.version))
    if not wanted or not found or (least := LEAST_DRIVER.get(wanted[0])) is None:
        return
    supported = _parse_version_numbers(facts.driver.cuda)
    # A compatibility package brings a newer CUDA to an old driver; NVML reports that one.
    if found >= least or (supported and supported[0] >= wanted[0]):
        return
    dotted = ".".join(f"{part:02d}" if place else str(part) for place, part in enumerate(least))
    yield say(
        "driver",
        facts.driver.version,
        f"the driver on {facts.host} is {facts.driver.version}, and torch "
        f"{facts.torch.version} is built with CUDA {facts.torch.cuda}, which needs "
        f"{dotted} or newer",
        f"install a torch built with CUDA {_newest_cuda_for_driver(found)}, or ask the site for a "
        "newer driver or for NVIDIA's package cuda-compat",
    )


def _newest_cuda_for_driver(driver: tuple[int, ...]) -> str:
    able = [major for major, least in LEAST_DRIVER.items() if driver >= least]
    return f"{max(able)}.x" if able else f"older than {min(LEAST_DRIVER)}"


def _find_gpus_unsupported_by_torch(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, say = (
        comparison.facts_of_run_machine,
        build_error_finding if comparison.asked.gpus else build_warning_finding,
    )
    built = facts.torch.architectures
    if not built:
        return
    for name, capability in sorted({(gpu.name, gpu.capability or "") for gpu in facts.driver.gpus or ()}):
        if capability and not supports_compute_capability(capability, built):
            yield say(
                "torch architectures",
                " ".join(built),
                f"{name} on {facts.host} has compute capability {capability}, and torch "
                f"{facts.torch.version} is built for {' '.join(built)}: no kernels for this GPU",
                "install a torch whose build lists it: older releases for older GPUs, a "
                "newer CUDA for newer ones",
            )


def supports_compute_capability(capability: str, built: tuple[str, ...]) -> bool:
    """Return whether a GPU of this compute capability runs code built for these architectures.

    Binary code (`sm_86`) runs on the same major version with the same or a later minor one, PTX
    (`compute_90`) on everything later; code for one architecture alone (`sm_90a`) on that one.
    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".

    Example:
        >>> runs_on("8.9", ("sm_80", "sm_90"))
        True
        >>> runs_on("10.0", ("sm_80", "sm_90"))
        False

    """
    own = _parse_version_numbers(capability)
    for found in filter(None, map(_ARCHITECTURE.match, built)):
        kind, major, minor, special = found.groups()
        for_gpu = (int(major), int(minor))
        if special == "a":
            fits = for_gpu == own
        elif kind == "sm" or special:
            fits = own[0] == for_gpu[0] and own >= for_gpu
        else:
            fits = own >= for_gpu
        if fits:
            return True
    return False


def _find_missing_gpus(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, asked = comparison.facts_of_run_machine, comparison.asked.gpus
    if facts.driver.gpus is None or any(gpu.mig for gpu in facts.driver.gpus):
        return
    found = len(facts.driver.gpus)
    if found < asked:
        driver = "; no NVIDIA driver is loaded" if facts.driver.version == "" else ""
        yield build_error_finding(
            "GPUs",
            found,
            f"{facts.host} shows the job {format_count(found, 'GPU')}, and resources.gpus_per_node "
            f"is {asked}{driver}",
            "choose a partition with such nodes (resources.partition, resources.constraint), or "
            "ask for fewer GPUs; CUDA_VISIBLE_DEVICES may hide some",
        )


def find_old_pynvml(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield a warning for each machine with the old distribution `pynvml`."""
    for facts in filter(None, (comparison.here, comparison.node)):
        if facts.python.old_pynvml is not None:
            yield build_warning_finding(
                "old pynvml",
                facts.python.old_pynvml,
                f"the distribution pynvml {facts.python.old_pynvml} is installed on {facts.host}; "
                "it hides the module of nvidia-ml-py, and GPUs may not be measured",
                "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
            )


def _parse_version_numbers(version: str | None) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, found[0].split("."))) if found else ()
