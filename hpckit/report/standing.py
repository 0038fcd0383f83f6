"""The standing of a run when its launch is resumed, as text for people and `--json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.standing import Judgement, Standing

_TEXTS: Mapping[Standing, str] = {
    Standing.resumable: "it is submitted again",
    Standing.completed: "completed",
    Standing.waiting: "it waits already",
    Standing.running: "it is running",
    Standing.unsettled: "Slurm may still start it again by itself",
    Standing.unconfirmed: "it is not known whether Slurm accepted it: see `hpckit doctor`",
    Standing.cancelled: "it was cancelled: name the run, or add --cancelled",
    Standing.spent: "{detail}",
    Standing.blocked: "it follows another run: {detail}",
    Standing.detached: "it follows run {follows}: resume that one, or the whole launch",
}


def standing_text(judgement: Judgement) -> str:
    """Return why a run is left alone, or that it is submitted again."""
    text = _TEXTS[judgement.standing]
    return text.replace("{follows}", str(judgement.follows)).replace("{detail}", judgement.detail)
