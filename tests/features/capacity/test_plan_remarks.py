"""What `hpckit plan` says besides: what it assumes, where numbers come from, what is unknown."""

from __future__ import annotations

import pytest
from features.capacity.planned import LLAMA, SEARCH, SHARDED, SMALL, flat, planned, said

pytestmark = pytest.mark.whole


@pytest.mark.parametrize(
    "words",
    [
        SHARDED,
        SEARCH,
        ("--model", "llama3-405b", "--gpu", "H100-SXM", "--gpus", "8", "--search"),
        ("--model", "mixtral-8x22b", "--gpu", "GB200", "--gpus", "72", "--sequence", "65536"),
        ("--model", "llama3-405b", "--gpu", "V100", "--price-per-gpu-hour", "2"),
        ("--power", "--gpu", "MI300X", "--power-cap-w", "400", "--gpus", "100000"),
        ("--model", "hidden=4096 layers=32 heads=32", "--gpu", "A100-40", "--gpus", "12"),
        (*LLAMA, "--zero", "3"),
        ("--model", "parameters=7e11", "--gpu", "A100-80", "--gpus", "8"),
        (*LLAMA, "--parallel", "pipeline=2", "stages_per_rank=4"),
    ],
)
def test_lines_fit_80_columns(words: tuple[str, ...]) -> None:
    """Also rows of a search, and commands, which are pasted as they stand."""
    assert max(len(line) for line in said(*words).splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--gpus", "12", "--parallel", "shard=12"), "12 is not a multiple of the 8 GPUs"),
        (("--gpus", "72", "--gpu", "GB200"), "it is unknown how many GPUs a node has"),
    ],
)
def test_launch_line_without_resources_says_why(words: tuple[str, ...], reason: str) -> None:
    """It asks for no nodes where the catalogue does not know how many GPUs one has."""
    gpu = () if "--gpu" in words else ("--gpu", "A100-80")
    words = ("--model", "gpt2", *gpu, *words)
    assert reason in flat(*words)
    assert reason in planned(*words)["unplaced"]
    assert not [one for one in planned(*words)["overrides"] if one.startswith("resources")]
    assert planned(*SHARDED)["unplaced"] is None


def test_plan_says_what_it_assumes() -> None:
    """Of plain numbers, of experts, of sequences that the model is not made for."""
    plain = flat("--model", "hidden=4096 layers=32 heads=32", *SMALL[2:])
    for word in ("vocab=51200", "ffn=16384", "biases=true", "positions=2048", "eager attention"):
        assert word in plain
    whole = "hidden=64 layers=2 heads=2 vocab=100 ffn=256 swiglu=true biases=false tied=true"
    assert "assumed" not in said("--model", f"{whole} positions=0 kv_heads=2", *SMALL[2:])
    mixed = planned("--model", "mixtral-8x7b", *SMALL[2:], "--gpus", "64")
    assert mixed["active_parameters"] == pytest.approx(12.88e9, rel=0.01)
    assert "expert parallelism" in mixed["remarks"][0]
    assert "longer than the 1024 positions" in flat(*SMALL, "--sequence", "2048")
    assert "longer than the 8192 that" in flat(*SHARDED, "--sequence", "16384")
    assert planned(*SHARDED)["remarks"] == []


def test_attention_that_is_counted_in_full_is_named() -> None:
    """A share of the peak above 1 can only come from there."""
    long = ("--model", "llama3.2-1b", "--gpu", "H100-SXM", "--sequence", "131072")
    found = planned(*long)
    assert found["mfu_masked"] < found["mfu"]
    assert "of the operations are attention, which both count in full" in flat(*long)
    assert "are attention" not in flat(*SHARDED)


def test_power_says_where_it_comes_from() -> None:
    """That of nodes can be given; a capped GPU is slower by an assumption."""
    words = ("--power", *SMALL[2:], "--gpus", "8")
    assert "812 W each (6.5 kW of a DGX A100 over 8" in flat(*words)
    assert "at full load" in flat(*words)
    assert planned(*words, "--node-w-per-gpu", "500")["node_w"] == 4000
    capped = flat(*words, "--power-cap-w", "300")
    assert "assumed to compute at 87 % of its rate" in capped
    assert "712 W each (6.5 kW of a DGX A100 over 8, less 100 W by the cap" in capped
    assert "energy" in said(*SHARDED)
    assert "at full load throughout" in flat(*SHARDED)
    assert "as often as in Llama 3's training" in flat(*SHARDED)


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_what_is_computed_again_needs_memory_while_it_is(attention: str) -> None:
    """Selective needs no less than full: both have a layer's scores while they compute it again."""
    shape = "hidden=1024 layers=4 heads=16 positions=16384 vocab=256"
    words = ("--model", shape, "--sequence", "16384", "--gpu", "RTX-4090", "--attention", attention)
    none, some, full = (
        planned(*words, "--recompute", one)["memory"]["activations"] for one in ("none", "selective", "full")
    )
    assert none >= some >= full
    assert full > 0.2 * none


def test_plain_loss_needs_more_than_a_compiled_one() -> None:
    """Measured with torch on a CPU: 12 bytes a score of plain cross entropy in bf16."""
    words = ("--model", "llama3.2-1b", "--gpu", "A100-40", "--micro-batch", "4")
    sizes = {
        loss: planned(*words, "--loss", loss)["memory"]["logits"] / (4 * 8192 * 128256)
        for loss in ("plain", "compiled", "in-place")
    }
    assert sizes == {"plain": 12, "compiled": 8, "in-place": 6}
    plain = planned(*words, "--kernels", "plain")["memory"]["logits"]
    assert plain == planned(*words, "--loss", "plain")["memory"]["logits"]
