"""What a run learns of earlier stages: the runs that it belongs with, and their folders."""

from __future__ import annotations

from pathlib import Path

from hpckit.errors import UsageError
from hpckit.model.stages import map_earlier_stages_to_runs
from hpckit.record.launches import Launch, checkpoint_folder, load_run_settings
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A run of an earlier stage: its index in the launch, its folder, and where its state is."""

    index: int
    folder: Path
    checkpoint_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """The stage of a run, by which it finds the runs of earlier ones."""

    launch: Launch
    index: int

    @property
    def name(self) -> str | None:
        """The stage's name; None if the launch has no stages."""
        return self.launch.runs[self.index].stage

    def earlier(self, stage: str) -> tuple[EarlierRun, ...]:
        """Return the runs of an earlier stage that this one belongs with; raises UsageError."""
        known = map_earlier_stages_to_runs(self.launch.stages, self.index)
        if stage not in known:
            there = ", ".join(known) or "none"
            raise UsageError(
                f"there is no stage {stage!r} before this run's own, which is {self.name}",
                hint=f"the stages before it: {there}",
            )
        return tuple(self._build_earlier_run(run) for run in known[stage])

    def _build_earlier_run(self, index: int) -> EarlierRun:
        settings, _ = load_run_settings(self.launch, index)
        return EarlierRun(
            index=index,
            folder=self.launch.paths.run(index).folder,
            checkpoint_dir=checkpoint_folder(self.launch, index, settings),
        )


def stage_variables(launch: Launch, index: int) -> dict[str, str]:
    """Return the variables by which a command finds the results of earlier stages.

    `HPCKIT_STAGE` is the run's own stage. For each earlier stage, `HPCKIT_STAGE_NAME_RUNS` holds the indices
    of its runs (`3` or `1-20`); `HPCKIT_STAGE_NAME_DIR` holds the folder if it is one run.
    """
    if not launch.stages:
        return {}
    found = {"HPCKIT_STAGE": launch.runs[index].stage or ""}
    for stage, runs in map_earlier_stages_to_runs(launch.stages, index).items():
        prefix = f"HPCKIT_STAGE_{stage.upper()}"
        single = len(runs) == 1
        found[f"{prefix}_RUNS"] = str(runs[0]) if single else f"{runs[0]}-{runs[-1]}"
        if single:
            found[f"{prefix}_DIR"] = str(launch.paths.run(runs[0]).folder)
    return found
