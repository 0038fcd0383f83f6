"""Which metric says how good a run is, where no search names one: guessed from its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpckit.model.launch import Direction
from hpckit.report.document.model import ReportGoal

_HELD_OUT = re.compile(r"(?<![a-z])(val|valid|validation|eval|test|dev)(?![a-z])", re.IGNORECASE)
_LOW = re.compile(
    r"(?<![a-z])(loss|nll|perplexity|ppl|error|err|mse|rmse|mae|wer|cer|fid|bpb|bpc)(?![a-z])",
    re.IGNORECASE,
)
_HIGH = re.compile(
    r"(?<![a-z])(acc|acc1|accuracy|f1|auc|auroc|bleu|rouge|map|miou|iou|dice|reward|return|psnr|ssim|"
    r"score|top1|top5|r2|precision|recall)(?![a-z])",
    re.IGNORECASE,
)


def guessed_goal(metrics: Iterable[str]) -> ReportGoal | None:
    """Return the goal of the first metric whose name tells it; None if none does.

    Metrics of held-out data come before others, and qualities before losses.
    """
    known = [(name, direction) for name in metrics if (direction := _direction(name))]
    if not known:
        return None
    metric, direction = min(
        known,
        key=lambda one: (not _HELD_OUT.search(one[0]), one[1] is not Direction.maximize),
    )
    return ReportGoal(metric=metric, direction=direction, guessed=True)


def _direction(name: str) -> Direction | None:
    if _LOW.search(name):
        return Direction.minimize
    return Direction.maximize if _HIGH.search(name) else None
