"""Runs of a launch that need not start, as other launches have completed them or are about to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.model.ids import build_run_id
from hpckit.model.plain import attributes_to_json
from hpckit.model.plan import RunSpec
from hpckit.model.states import RunState
from hpckit.report.comparison import KeyDifference
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run of this launch that need not start, and the earlier run that replaces it."""

    index: int
    overrides: tuple[str, ...]
    folder: Path
    earlier: int
    state: RunState
    differs: tuple[KeyDifference, ...] = ()
    """Of a run under way: what it was given otherwise than this launch asks for."""

    @property
    def id(self) -> str:
        """The id of the earlier run."""
        return build_run_id(self.folder.name, self.earlier)

    @property
    def json_fields(self) -> dict[str, object]:
        """The run as `launch --json` prints it; `index` is that of the earlier run."""
        differs = [attributes_to_json(difference, "key has=old asked=new") for difference in self.differs]
        return {
            **attributes_to_json(self, "run=id index=earlier overrides state dir=folder"),
            **({} if self.state is RunState.completed else {"differs": differs}),
        }


@dataclass(slots=True, kw_only=True)
class KnownRuns:
    """The known runs of a launch: `skipped` have completed, `adopted` wait or run elsewhere.

    `apart` would be known, too, but runs need each other within one launch, as `needs` says.
    `changed` counts runs that would be known, but their code has changed or cannot be identified,
    `changed_open` are the ids of those that wait or run; `changed_in` is the newest launch with
    such runs, and `changed_files` are those that differ from its code. `elsewhere` are completed
    runs that a resume had given another layout, with the words that asked for it: not what is asked
    for now. `environment` is what differs in the environment of the newest skipped run, in words.
    """

    skipped: list[KnownRun] = field(default_factory=list)
    adopted: list[KnownRun] = field(default_factory=list)
    apart: list[KnownRun] = field(default_factory=list)
    needs: str = ""
    changed: int = 0
    changed_open: list[str] = field(default_factory=list)
    changed_in: str = ""
    changed_files: tuple[str, ...] = ()
    elsewhere: dict[str, tuple[str, ...]] = field(default_factory=dict)
    environment: tuple[str, ...] = ()

    @property
    def would_repeat_runs(self) -> bool:
        """Whether something that has completed or is under way would be launched once more."""
        return bool(self.changed or self.apart)

    @property
    def json_fields(self) -> dict[str, object]:
        """The fields of `launch --json`."""
        return {
            "skipped": [run.json_fields for run in self.skipped],
            "adopted": [run.json_fields for run in self.adopted],
        }

    def indices_to_launch(self, runs: Sequence[RunSpec]) -> tuple[int, ...]:
        """Return the indices of the runs to launch."""
        known = {run.index for run in (*self.skipped, *self.adopted)}
        return tuple(run.index for run in runs if run.index not in known)
