"""Promises of the other forms of a report: JSON, Markdown, and the words they share."""

from __future__ import annotations

import json

import pytest
from cli_world import Desk
from report_launches import gathered, hostile_launch, swept_launch, troubled_launch

from hpckit.features.reporting.document import format_summary_sentences
from hpckit.features.reporting.forms import format_markdown_report, report_to_json
from hpckit.features.reporting.gather import guess_goal_from_metric_names
from hpckit.model.goodput import TimeParts
from hpckit.model.plain import replace_nan_with_null, to_plain
from hpckit.model.search import Direction


@pytest.mark.parametrize(
    ("names", "metric", "direction"),
    [
        (("lr", "loss"), "loss", Direction.minimize),
        (("loss", "val/loss"), "val/loss", Direction.minimize),
        (("val_loss", "val_acc"), "val_acc", Direction.maximize),
        (("train_accuracy", "eval.ppl"), "eval.ppl", Direction.minimize),
    ],
)
def test_goal_is_guessed_from_names(names: tuple[str, ...], metric: str, direction: Direction) -> None:
    """Of held-out data first, then qualities; the name tells which values are good."""
    goal = guess_goal_from_metric_names(names)
    assert goal is not None
    assert (goal.metric, goal.direction, goal.guessed) == (metric, direction, True)


def test_goal_of_names_that_tell_nothing_is_none() -> None:
    """`glossary` is no loss, `replace` no accuracy."""
    assert guess_goal_from_metric_names(("lr", "glossary", "replaced", "maps")) is None


def test_timeline_of_a_run_is_its_account(desk: Desk) -> None:
    """The spans of the report are the seconds of `status --goodput`, and sum to the wall time."""
    document = gathered(desk, troubled_launch(desk))
    (lane,), (row,) = document.timelines, document.rows
    assert row.goodput is not None
    sums = dict.fromkeys(to_plain(TimeParts()), 0.0)
    for span in lane.spans:
        sums[span.part] += (span.end - span.begin).total_seconds()
    assert sums == to_plain(row.goodput.parts)
    assert sum(sums.values()) == row.goodput.parts.wall.total_seconds()
    assert all(one.end == other.begin for one, other in zip(lane.spans, lane.spans[1:], strict=False))


def test_curves_show_undone_steps_by_themselves(desk: Desk) -> None:
    """Two restarts leave two undone pieces; what holds has each step once."""
    document = gathered(desk, troubled_launch(desk))
    (loss,) = (curve for curve in document.curves if curve.metric == "loss")
    (curve,) = loss.runs
    assert list(curve.live.steps) == sorted(set(curve.live.steps))
    assert [(piece.steps[0], piece.steps[-1]) for piece in curve.undone] == [(300, 419), (600, 799)]


def test_gpus_and_ranks_come_from_telemetry(desk: Desk) -> None:
    """Four GPUs have lanes in which most columns are known, and four ranks their steps."""
    document = gathered(desk, troubled_launch(desk))
    assert document.activity is not None
    assert [(lane.node, lane.gpu) for lane in document.activity.lanes] == [
        ("n1", "GPU 0"),
        ("n1", "GPU 1"),
        ("n2", "GPU 0"),
        ("n2", "GPU 1"),
    ]
    lane = document.activity.lanes[2]
    known = [busy for busy in lane.busy if busy is not None]
    assert len(known) > len(lane.busy) / 2
    assert min(known) < 0.3
    assert max(known) > 0.9
    assert [(rank.steps.rank, rank.slower_by) for rank in document.ranks] == [
        (0, None),
        (1, None),
        (2, None),
        (3, 0.28),
    ]
    (gpu, *_) = document.gpus
    assert (gpu.memory_peak_bytes, gpu.memory_bytes) == (61e9, 80e9)


def test_many_runs_are_a_few_curves_and_a_band(desk: Desk) -> None:
    """Twelve runs have curves, the best and those in trouble first; the others are the band."""
    document = gathered(desk, swept_launch(desk, 20, steps=10))
    assert [curve.metric for curve in document.curves] == ["acc", "loss"]
    for curves in document.curves:
        assert len(curves.runs) == 12
        assert curves.band is not None
        assert curves.band.runs == 8
    drawn = {run.run.rpartition(".")[2] for run in document.curves[0].runs}
    assert {"0", "5", "10", "15", "7"} <= drawn


def test_json_of_a_report_is_the_whole_document(desk: Desk) -> None:
    """Runs as `status --json` has them, with timelines, curves, GPUs and ranks beside."""
    launch = troubled_launch(desk)
    found = report_to_json(gathered(desk, launch))
    json.dumps(replace_nan_with_null(found), allow_nan=False)
    assert found["runs"][0]["run"] == f"{launch.id}.0"
    assert [one["cause"] for one in found["failures"]] == ["exception"]
    assert {"timelines", "curves", "gpu_activity", "gpus", "ranks", "launches"} <= set(found)


def test_markdown_holds_hostile_names(desk: Desk) -> None:
    """No sign of Markdown's is obeyed."""
    text = format_markdown_report(gathered(desk, hostile_launch(desk)))
    inside = False
    for line in text.splitlines():
        inside ^= line.strip().startswith("```")
        assert inside or "<img" not in line.replace("\\<img", "")
    assert "\x1b" not in text


def test_markdown_is_a_short_twin_of_the_page(desk: Desk) -> None:
    """Verdicts with remedies, failures with tracebacks, the account, the runs, the next step."""
    launch = troubled_launch(desk)
    text = format_markdown_report(gathered(desk, launch))
    assert text.startswith(f"# {launch.id}\n\n- 1 run: 1 failed.\n- Goodput 68.8 % of 1 h;")
    assert "- **input bound (high)**: Ranks waited 35 % of each step for data" in text
    assert "- **restarts (high)**:" in text
    assert "    loss = model(batch).mean()" in text
    assert "| wall | 1:19:20 |  |" in text
    assert text.endswith(f"    hpckit rerun {launch.id}\n")
    assert len(text) < 5000


def test_report_of_what_never_began_says_so(desk: Desk) -> None:
    """Pending runs are a report, too."""
    document = gathered(desk, desk.freeze("new", sweep=[("a=1",), ("a=2",)]))
    assert format_summary_sentences(document)[0] == "2 runs: 2 pending; some have not ended yet."
    assert "No verdict: no run has begun." in format_markdown_report(document)


def test_report_of_several_launches_names_each(desk: Desk) -> None:
    """Runs keep their whole ids where `.0` could be of either."""
    first, second = desk.freeze("one", sweep=[("a=1",)]), desk.freeze("two", sweep=[("a=1",)])
    document = gathered(desk, first, second)
    assert document.title == "2 launches: one, two"
    assert [row.run for row in document.rows] == [f"{first.id}.0", f"{second.id}.0"]
