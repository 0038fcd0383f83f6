"""Promises of planning.printed_metrics: what people's programs print becomes rows."""

from __future__ import annotations

import time

import pytest

from hpckit.errors import ConfigError
from hpckit.planning.printed_metrics import compile_metric_patterns, parse_printed_metrics

LOSS = [
    ("loss: 0.3", None, 0.3),
    ("Loss=0.3,", None, 0.3),
    ("{'loss': 0.3, 'lr': 5e-05, 'epoch': 1.25}", None, 0.3),
    ('{"step": 12, "loss": 3e-1}', 12, 0.3),
    ("step 10: val loss 2.5, loss 1.5", 10, 1.5),
    ("step 10 loss 2.5", 10, 2.5),
    ("Epoch: 1 Loss: 0.3", 1, 0.3),
    ("INFO loss 0.3", None, 0.3),
    ("acc 0.9 and loss 0.3", None, 0.3),
    ("1/step - loss: 0.3 - val-loss: 0.4", None, 0.3),
    ("time per step: 12 ms, step 300, loss 3", 300, 3),
    ("time per step: 12 ms, loss 3", None, 3),
    ("step " + 1000 * "9" + " loss 3", None, 3),
    ("step 1,000 | loss 3", 1000, 3),
    ("Step [12,345/100,000], loss: 3", 12345, 3),
    ("step 10,loss 3", 10, 3),
    ("tokens/step 512 | loss 3 | step: 1", 1, 3),
    ("sec/iter: 606 iter: 6 loss 3", 6, 3),
    ("total steps: 1000, max steps 7, warmup steps 100, step: 5, loss 3", 5, 3),
    ("time/step: 30 loss 3", None, 3),
    ("loss: 0.5 / acc: 0.9", None, 0.5),
    ("loss 0.5 G: 0.7", None, 0.5),
    ("loss 1e300", None, 1e300),
    ("loss: 1,234.5; mem 3", None, 1234.5),
    ("the loss is loss: 0.5. Good", None, 0.5),
    ("loss 2, loss 2", None, 2),
    ("loss 0.5 min 0.1 max 0.9", None, 0.5),
    ("loss 0.5 min 0.1 step 4", 4, 0.5),
    ("loss 0.5 hours: 3", None, 0.5),
    ("loss 0.5 of the best", None, 0.5),
    ("grad nan loss 2", None, 2),
    ("best loss 0.2 at step 3, loss 0.3 at step 9", 9, 0.3),
    ("epoch 5 loss 0.3 best 0.2 (epoch 3)", 5, 0.3),
    ("best step 3 loss 2", 3, 2),
    ("iter 40: loss 4.1, time 4ms, mfu -100.00%", 40, 4.1),
    ("Epoch [3/10] loss: -.5", 3, -0.5),
    ("global_step=7 epoch=1 loss=1e3", 7, 1000),
    ("\x1b[1mloss\x1b[0m: nan", None, "nan"),
    ("INFO loss 98% of 5", None, 98),
    ("Epoch 2:  30%|###   | 3/10 [00:01<00:03, 2.1it/s, loss=0.25]", 2, 0.25),
]


@pytest.mark.parametrize(("line", "step", "loss"), LOSS)
def test_a_name_in_front_of_a_number_is_found(line: str, step: int | None, loss: object) -> None:
    """However it is written; the step stands in the same line, or is not known."""
    assert parse_printed_metrics(line, compile_metric_patterns(["loss"])) == {"step": step, "loss": loss}


@pytest.mark.parametrize(
    "line",
    [
        *("", "the loss is large", "glosses: 3", "loss: 0x3f", "loss: 3rd", "my.loss=3"),
        *("loss_fn: 1", "loss: 3.4s", "loss: 12.5K", "loss=0,25", "loss: 2024-01-05"),
        *("loss: 1,23", "loss: 9801/10000 (98%)", "loss: 3:20", "loss: 1.2.3", "val/loss: 7"),
        *("val loss: 0.5", "Eval loss: 0.1", "val-loss=0.2", "{'val loss': 0.5}"),
        *(
            "step 10: train loss 2.5",
            "Train Loss: 3",
            "loss: 3e5x",
            "loss: 100 ms",
            "loss: 12 K",
            "loss: 3 / 10",
            "loss: 1.5M",
            "train loss 2.5, val loss 0.3",
            *("loss: 900 MB", "loss: 1.2 GB", "loss: 3 MiB", "loss 1.5 T", "loss: 12 GHz"),
            *("loss: 2 min", "loss: 3 hours", "loss: 5 h", "loss 3 min 20 s", "loss 2 h 30 min"),
            *("loss: 9 of 10", "loss: 9 out of 10", "loss: 1'234.5", "loss: 50‰"),
            *("loss: 1.5 e-3", "loss: 1.5x10^-3", "loss: 1.5\u00d710⁻³", "loss: 2^10", "loss: 2**10"),
        ),
    ],
)
def test_other_words_and_texts_are_no_metric(line: str) -> None:
    """A name is a whole word, what follows is a whole number, and only one value is meant."""
    assert parse_printed_metrics(line, compile_metric_patterns(["loss"])) == {}


def test_regular_expressions_name_their_metrics() -> None:
    """Groups are metrics, and a group `step` is the step; several patterns make one row."""
    wanted = compile_metric_patterns([r"it=(?P<step>\d+) top1 (?P<acc>\S+) top5 (?P<acc5>\S+)", "val loss"])
    line = "it=30 top1 70.1% top5 90, val loss 0.4, step 5"
    assert parse_printed_metrics(line, wanted) == {"step": 30, "acc": 70.1, "acc5": 90, "val loss": 0.4}
    assert parse_printed_metrics("it=30 top1 x top5 y", wanted) == {}


@pytest.mark.parametrize(
    "piece", ["loss 1", "loss 3 min 2 ", "loss: ", "best ", "step ", "loss 1,111", "1'", " "]
)
def test_time_for_a_line_grows_as_the_line_does(piece: str) -> None:
    """No program keeps the agent busy by what it prints: eight times the line, not sixty times."""
    ((pattern, _, _),) = compile_metric_patterns(["loss"])

    def took(size: int) -> float:
        line = piece * (size // len(piece))
        start = time.process_time()
        for _ in pattern.finditer(line):
            pass
        return time.process_time() - start

    short = max(min(took(10_000) for _ in range(3)), 1e-3)
    assert min(took(80_000) for _ in range(3)) < 30 * short


def test_long_numbers_are_no_step() -> None:
    """Python reads no number of more than 4300 digits: such a line must not end the reading."""
    wanted = compile_metric_patterns(["loss", r"(?P<step>\d+) acc (?P<acc>\S+)"])
    for digits in (16, 1900):
        assert parse_printed_metrics(f"step {'9' * digits} loss: 3", wanted)["step"] is None
    assert parse_printed_metrics("9" * 5000 + " loss: 3", wanted) == {}
    assert parse_printed_metrics("step " + "9" * 1900 + " acc 3", wanted) == {"step": None, "acc": 3}


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (r"loss (\S+)", "without a named group", "(?P<accuracy>"),
        ("loss (?:is )?", "without a named group", "(?P<accuracy>"),
        ("loss ([0-9.]+)", "without a named group", "(?P<accuracy>"),
        ("loss (.*)", "without a named group", "(?P<accuracy>"),
        ("loss:", "ends in : or =", "'loss'"),
        ("val loss = ", "ends in : or =", "'val loss'"),
    ],
)
def test_expressions_without_a_name_and_signs_are_refused(text: str, words: str, hint: str) -> None:
    """Taken as names they would find nothing, and nobody would know why."""
    with pytest.raises(ConfigError) as told:
        compile_metric_patterns([text])
    assert repr(text) in told.value.message
    assert words in told.value.message
    assert hint in told.value.hint


def test_names_may_hold_what_expressions_mostly_hold() -> None:
    """Only what no name has makes a text an expression."""
    line = "acc@1 (avg): 3, loss[train] 4"
    wanted = compile_metric_patterns(["acc@1 (avg)", "loss[train]"])
    assert parse_printed_metrics(line, wanted) == {"step": None, "acc@1 (avg)": 3, "loss[train]": 4}


@pytest.mark.parametrize("text", ["(?P<a", "", " ", "at", "round", r"(?P<step>\d+)", r"(?P<at>.)"])
def test_what_names_no_metric_is_refused(text: str) -> None:
    """With the text, and what is allowed."""
    with pytest.raises(ConfigError) as told:
        compile_metric_patterns([text])
    assert repr(text) in told.value.message
    assert "named groups" in told.value.hint
