"""The numbers from which on something is said, each with its reason and source. Pure.

docs/explanations/verdicts.md shows them as they are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpckit.values import dataclass, field


def _limit(value: float, why: str) -> Any:
    return field(default=value, metadata={"why": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a measurement counts. Shares are from 0 to 1; the end of a name is its unit."""

    medium_loss: float = _limit(0.10, "a tenth of the time is worth an hour of work on most runs")
    high_loss: float = _limit(0.25, "a quarter of the time is worth stopping the run for")
    steps: int = _limit(20, "fewer steps are warm-up: compilation, caches, the first batches")
    steps_s: float = _limit(10.0, "less is shorter than the bursts of a loader or a file system")
    samples: int = _limit(10, "jobstats also wants ten samples before it speaks of a job")
    run_s: float = _limit(30.0, "a shorter run is mostly start-up")
    data_share: float = _limit(
        0.10, "TensorFlow's profiler calls 5 % moderately and 20 % highly input-bound; between them"
    )
    waiting_share: float = _limit(
        0.20,
        "of the rank that waits least, so that waiting for stragglers does not count; well "
        "overlapped data parallelism stays below (our choice)",
    )
    own_share: float = _limit(
        0.70, "a GPU's low activity is the program's own only if ranks wait for little else"
    )
    idle_utilization: float = _limit(
        0.15, "jobstats marks GPU utilization below 15 % as its worst class"
    )
    explained_share: float = _limit(
        0.80, "the GPU's rank was computing or waiting for what other verdicts name (our choice)"
    )
    low_utilization: float = _limit(
        0.60, "without SM activity: gaps between kernels are over 40 % of the time (our choice)"
    )
    low_sm_activity: float = _limit(
        0.50, "NVIDIA's DCGM guide: less than 0.5 likely indicates ineffective GPU usage"
    )
    high_sm_activity: float = _limit(
        0.80, "NVIDIA's DCGM guide: 0.8 or greater is necessary for effective use"
    )
    high_utilization: float = _limit(
        0.90,
        "without SM activity: together with the power, because one small kernel makes it 100 %",
    )
    high_power_share: float = _limit(
        0.80, "of the power limit: a GPU that mostly waits for memory or kernels stays below"
    )
    dram_activity: float = _limit(
        0.60, "NVIDIA's DCGM guide: about 0.8 is the most that is achievable; three quarters of it"
    )
    heat_share: float = _limit(
        0.05, "of the time: a GPU that is cooled well never lowers its clocks for heat"
    )
    power_share: float = _limit(
        0.30, "of the time: matrix kernels touch the limit for moments on healthy GPUs"
    )
    straggler_excess: float = _limit(
        0.15, "own work a step above the peers' median; NVIDIA's resiliency extension says 0.33"
    )
    straggler_step_share: float = _limit(
        0.03, "of a whole step: a smaller excess cannot slow the run by more than that"
    )
    straggler_noise: float = _limit(
        30.0,
        "times the scatter of windows around their rank's own median, over the number of windows; "
        "in simulations none of equal ranks was named",
    )
    window_s: float = _limit(
        2.0, "a window is this long, or `window_steps` steps if that is longer"
    )
    window_steps: int = _limit(10, "fewer steps are ruled by single slow ones")
    windows: int = _limit(20, "the latest windows that count")
    slow_windows: int = _limit(16, "of these in which a rank was slow, for it to be named")
    least_windows: int = _limit(5, "slow windows before a rank is named at all")
    checkpoint_share: float = _limit(
        0.05, "the automatic interval keeps the time that a save is written below a tenth"
    )
    saves: int = _limit(3, "one slow save is the file system's bad moment")
    restart_share: float = _limit(
        0.05, "large training runs report 90 to 97 % effective training time (Llama 3: over 90 %)"
    )
    cpu_share: float = _limit(0.25, "of the cores; jobstats' red is 65 %, without cores for bursts")
    spare_cores: int = _limit(8, "fewer unused cores on a node help no other job")
    memory_share: float = _limit(0.30, "of the memory at its peak: three times as much is a margin")
    spare_memory_gb: float = _limit(32.0, "less unused memory on a node helps no other job")
    time_share: float = _limit(
        0.25, "of the time limit, of a completed run; jobstats' worst class is 10 %, its limit 60 %"
    )
    spare_time_s: float = _limit(1800.0, "less does not change when Slurm's backfill starts a job")


def reasons() -> Mapping[str, str]:
    """Return why each threshold is as it is, by its name."""
    return {name: str(one.metadata["why"]) for name, one in Thresholds.__dataclass_fields__.items()}


DEFAULT = Thresholds()
