"""The charlm experiment: what it promises of its text, its result and its repetition."""

import math
from typing import Any

import pytest
import torch

from hpckit.errors import ConfigError
from hpckit.experiments import charlm

pytestmark = pytest.mark.training

SMALL = {
    "steps": 12,
    "batch_size": 8,
    "context": 32,
    "layers": 1,
    "width": 32,
    "training_kb": 64,
    "heldout_kb": 4,
    "log_every": 1,
    "evaluate_every": 6,
    "warmup_steps": 2,
    "lr": 0.01,
}


def test_charlm_two_ranks_learn(trainer: Any) -> None:
    """Within twelve steps the loss falls below that of guessing, and held-out bits are told."""
    metrics = trainer.train("charlm", 2, **SMALL)
    assert metrics["loss"][0][1] == pytest.approx(math.log(256), rel=0.05)
    assert metrics["loss"][-1][1] < metrics["loss"][0][1] - 1.0
    steps = [step for step, _ in metrics["bits_per_byte"]]
    assert steps == [5, 11]
    assert metrics["bits_per_byte"][-1][1] < 7.0


def test_charlm_same_seed_gives_the_same_metrics(trainer: Any) -> None:
    """The same seed on the same number of ranks logs the very same numbers."""
    again = trainer.train_again("charlm", 2, **SMALL)
    assert again == trainer.train("charlm", 2, **SMALL)


def test_charlm_number_of_ranks_does_not_change_what_is_learnt(trainer: Any) -> None:
    """One rank and two see the same batches and the same held-out text."""
    alone, together = (trainer.train("charlm", ranks, **SMALL) for ranks in (1, 2))
    for name in ("loss", "bits_per_byte"):
        torch.testing.assert_close(
            [value for _, value in alone[name]], [value for _, value in together[name]], rtol=1e-3, atol=1e-4
        )


def test_read_corpus_holds_out_whole_files() -> None:
    """No file gives text to both parts, and the sizes stay below what was asked for."""
    training, heldout = charlm.read_corpus(training_bytes=300_000, heldout_bytes=20_000)
    assert (len(training), len(heldout)) == (300_000, 20_000)
    assert bytes(heldout[:200].tolist()) not in bytes(training.tolist())


def test_batch_starts_differ_by_step_and_seed_only() -> None:
    """A batch follows from the seed and the step, whatever was drawn before."""
    torch.manual_seed(1)
    first = charlm.draw_batch_starts(1000, 8, 0, 5)
    torch.rand(3)
    assert torch.equal(first, charlm.draw_batch_starts(1000, 8, 0, 5))
    assert not torch.equal(first, charlm.draw_batch_starts(1000, 8, 0, 6))
    assert not torch.equal(first, charlm.draw_batch_starts(1000, 8, 1, 5))


def test_transformer_never_sees_what_comes_later() -> None:
    """Changing a byte changes no prediction before it."""
    torch.manual_seed(0)
    model = charlm.Transformer(width=16, layers=2, heads=2, context=8).eval()
    sequence = torch.randint(256, (1, 8))
    changed = sequence.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    before, after = model(sequence)[0], model(changed)[0]
    torch.testing.assert_close(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_transformer_width_that_heads_do_not_divide_is_refused() -> None:
    """The error names both numbers."""
    with pytest.raises(ConfigError, match="width=10 cannot be split into 4 heads"):
        charlm.Transformer(width=10, layers=1, heads=4, context=8)


def test_warm_up_and_decay_rises_then_falls_to_nothing() -> None:
    """The factor climbs to 1 in the warm-up and ends at 0."""
    factors = [charlm.learning_rate_factor(step, 4, 20) for step in range(21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[-1] == pytest.approx(0.0)
