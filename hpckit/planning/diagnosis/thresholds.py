"""The numbers from which on something is said, each with its reason and source. Pure."""

from __future__ import annotations

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a measurement counts. Shares are from 0 to 1; the end of a name is its unit."""

    medium_loss: float = 0.10
    """On most runs a tenth of the time is worth an hour of work."""
    high_loss: float = 0.25
    """A quarter of the time is worth stopping the run."""
    steps: int = 20
    """Fewer steps are warm-up: compilation, caches, the first batches."""
    steps_s: float = 10.0
    """Loaders and file systems have bursts as long as that."""
    samples: int = 10
    """Jobstats wants as many."""
    run_s: float = 30.0
    """A shorter run is mostly start-up."""
    data_share: float = 0.10
    """Between what TensorFlow's profiler calls moderately (5 %) and highly (20 %) input-bound."""
    waiting_share: float = 0.20
    """Of the rank that waits least, so that stragglers don't count; well overlapped data
    parallelism stays below (our choice)."""
    own_share: float = 0.70
    """Ranks wait for little else, so the program itself is slow."""
    idle_utilization: float = 0.15
    """Jobstats' worst class of GPU utilization."""
    explained_share: float = 0.80
    """Its rank computed, or waited for what other verdicts name (our choice)."""
    low_utilization: float = 0.60
    """Without SM activity: gaps between kernels take 40 % (our choice)."""
    low_sm_activity: float = 0.50
    """NVIDIA's DCGM guide: less is likely ineffective."""
    high_sm_activity: float = 0.80
    """NVIDIA's DCGM guide: needed for effective use."""
    high_utilization: float = 0.90
    """Without SM activity, and with `high_power_share`: one small kernel makes it 100 %."""
    high_power_share: float = 0.80
    """Of the power limit: a GPU that waits for memory or kernels stays below."""
    dram_activity: float = 0.60
    """Three quarters of the most that NVIDIA's DCGM guide thinks possible."""
    heat_share: float = 0.05
    """Of the time: well cooled GPUs never lower their clocks."""
    power_share: float = 0.30
    """Of the time: healthy GPUs touch the limit for moments."""
    straggler_excess: float = 0.15
    """Own work above the peers' median; NVIDIA's resiliency extension has 0.33."""
    straggler_step_share: float = 0.03
    """Of a whole step: less can't slow the run by more."""
    straggler_noise: float = 30.0
    """Times the scatter of windows around their rank's median, over the number of windows."""
    window_s: float = 2.0
    """Length of a window, unless `window_steps` take longer."""
    window_steps: int = 10
    """Single slow steps rule shorter windows."""
    windows: int = 20
    """The latest windows that count."""
    slow_windows: int = 16
    """Slow ones of these, for a rank to be named."""
    least_windows: int = 5
    """Slow windows in a row that are enough, too."""
    checkpoint_share: float = 0.05
    """The automatic interval keeps writing below a tenth."""
    saves: int = 3
    """One slow save means little."""
    restart_share: float = 0.05
    """Large runs report 90 to 97 % effective training time."""
    cpu_share: float = 0.25
    """Of the cores; jobstats' red is 65 %, without room for bursts."""
    spare_cores: int = 8
    """Fewer per node help no other job."""
    memory_share: float = 0.30
    """Of the peak: three times as much is a margin."""
    spare_memory_gb: float = 32.0
    """Less per node helps no other job."""
    time_share: float = 0.25
    """Of a completed run's time limit; jobstats' worst class is 10 %, its limit 60 %."""
    spare_time_s: float = 1800.0
    """Less doesn't change when Slurm's backfill starts a job."""


DEFAULT = Thresholds()
