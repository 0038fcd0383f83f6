"""Which runs of a launch to start again: by state, overrides, cause of failure, index. Pure.

The filters mean the same in every verb.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from hpckit.errors import UsageError
from hpckit.model.counted import parse_number_ranges
from hpckit.model.failure import Cause
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.report.rows import count_runs_by_state, find_run_failure
from hpckit.report.selection import Filter
from hpckit.report.text import format_state_counts
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter for runs: a run has to pass every part; an empty part takes all.

    `indices` null means all. `words` are the options as they were typed, for messages.
    """

    basic: Filter = field(default_factory=Filter)
    causes: frozenset[Cause] = frozenset()
    indices: frozenset[int] | None = None
    words: str = ""

    @property
    def takes_all_runs(self) -> bool:
        """Whether it takes every run."""
        return self.basic.takes_all_runs and not self.causes and self.indices is None

    @property
    def includes_cancelled(self) -> bool:
        """Whether cancelled runs are requested: by their state, or by their indices."""
        return RunState.cancelled in self.basic.states or self.indices is not None

    def matches_run(self, view: RunView) -> bool:
        """Whether the filter takes this run."""
        return (
            (self.indices is None or view.record.index in self.indices)
            and self.basic.matches_run(view.state, view.record.overrides)
            and (not self.causes or find_failure_cause(view) in self.causes)
        )

    def select_runs(self, views: Sequence[RunView], launch: str) -> tuple[RunView, ...]:
        """Return the runs that the filter takes. Raises UsageError if there are none."""
        found = tuple(view for view in views if self.matches_run(view))
        if not found and not self.takes_all_runs:
            raise UsageError(
                f"no run of {launch} matches {self.words}; it has {format_state_and_cause_counts(views)}",
                hint=f"`hpckit results {launch}` lists its runs with their overrides",
            )
        return found


def find_failure_cause(view: RunView) -> Cause | None:
    """Return why a run did not complete; None if it did, or has not ended."""
    known = find_run_failure(view)
    return None if known is None else known.cause


def format_state_and_cause_counts(views: Iterable[RunView]) -> str:
    """Return how many runs there are by state, and how many failed by cause."""
    runs = list(views)
    causes = Counter(cause for view in runs if (cause := find_failure_cause(view)) is not None)
    counted = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return format_state_counts(count_runs_by_state(view.state for view in runs)) + (
        f" (causes: {counted})" if counted else ""
    )


def parse_failure_causes(words: Iterable[str]) -> frozenset[Cause]:
    """Return the causes of a text such as `oom,hang`.

    Each is the name of a cause or a word of it: `oom` is `cuda_oom` and `host_oom`. Raises
    UsageError for an unknown cause.
    """
    return frozenset(
        cause for text in words for word in text.split(",") for cause in _match_failure_causes(word.strip())
    )


def _match_failure_causes(word: str) -> list[Cause]:
    if word in Cause.__members__:
        return [Cause(word)]
    found = [cause for cause in Cause if word in cause.split("_")]
    if not found:
        raise UsageError(
            f"--cause: {word!r} is not a cause; causes are {', '.join(Cause)}",
            hint=f"did you mean {near[0]}?"
            if (near := difflib.get_close_matches(word, Cause, n=1))
            else "several are separated by commas, and a word of a name is enough: --cause oom,hang",
        )
    return found


def parse_run_indices(text: str, runs: int, launch: str) -> frozenset[int]:
    """Return the runs that `--runs 3-7,12` means in a launch with `runs` runs.

    Raises UsageError if the text is malformed, or names a run that does not exist.
    """
    try:
        return parse_number_ranges(text, runs)
    except ValueError as error:
        raise UsageError(
            f"--runs is {text!r}: {error}; {launch} has the runs 0 to {runs - 1}",
            hint="numbers and ranges, separated by commas: --runs 3-7,12",
        ) from None
