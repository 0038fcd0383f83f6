"""What `hpckit plan` says of a model: what it needs, how long it takes, how it is launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from features.capacity.planned import LLAMA_CONFIG, SHARDED, flat, planned, said

from hpckit.features.capacity.presets import MODELS
from hpckit.features.capacity.request import choose_sequence_length

pytestmark = pytest.mark.whole

V100 = ("--gpu", "V100")
GPT = ("--model", "gpt2", *V100)
OWN = "A100-80 network_gb_per_s=6.25 gpus_per_link=4 memory_gib=64"
NUMBERS = "hidden=12288 layers=80 heads=96 vocab=51200"
SC21 = (
    *("--gpu", "A100-80", "--gpus", "1536", "--global-batch", "2304", "--micro-batch", "2"),
    *("--parallel", "tensor=8", "pipeline=8", "stages_per_rank=2", "--sequence", "2048"),
)


def test_plan_says_what_a_model_needs() -> None:
    """Text and JSON say the same; a measured step gives its own utilisation."""
    words = ("--model", NUMBERS, *SC21, "--recompute", "full", "--step-s", "24.82")
    found = planned(*words)
    assert found["parameters"] == pytest.approx(145.6e9, rel=0.001)
    assert found["hfu"] == pytest.approx(0.47, abs=0.01)
    assert found["mfu"] < found["hfu"]
    assert found["layout"]["replicate"] == 24
    assert found["fits"]
    memory = dict(found["memory"])
    total = memory.pop("total")
    assert total["expected"] == pytest.approx(sum(memory.values()))
    text = said(*words)
    assert f"HFU {100 * found['hfu']:.1f} %" in text
    assert f"{total['expected'] / 2**30:.2f} GiB" in text


def test_option_wins_over_what_the_model_says() -> None:
    """`--vocab` is another vocabulary than that of the numbers."""
    few = planned("--model", "hidden=64 layers=1 heads=1 vocab=100", "--gpu", "V100")
    more = planned("--model", "hidden=64 layers=1 heads=1 vocab=100", "--gpu", "V100", "--vocab", "300")
    assert more["parameters"] - few["parameters"] == 200 * 64


def test_model_is_read_from_its_configuration(tmp_path: Path) -> None:
    """A Hugging Face config.json is the preset of the same model, also named by its folder.

    A name's capitals do not matter, and a folder needs no slash.
    """
    config = tmp_path / "mine" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA_CONFIG))
    words = ("--gpu", "H200", "--gpus", "8", "--parallel", "shard=8")
    preset = planned("--model", "Llama3-8B", *words)
    assert preset == planned("--model", "llama3-8b", *words)
    for name in ("mine", "mine/", "mine/config.json", str(config.parent), str(config)):
        assert planned("--model", name, *words, folder=tmp_path) == preset
    config.write_text(json.dumps(LLAMA_CONFIG | {"attention_bias": True}))
    biased = planned("--model", str(config), *words)["parameters"]
    assert biased - preset["parameters"] == 32 * (4096 + 2 * 1024)


def test_loss_is_that_of_the_printed_command_unless_given() -> None:
    """`run.train_step` without `loss=` is planned; another loss is what the user's code has."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "8", "--parallel", "shard=8")
    usual, plain = planned(*words), planned(*words, "--loss", "plain")
    assert usual["memory"] == plain["memory"]
    assert usual["moment"] == "loss"
    assert usual["memory"]["logits"] == 8192 * 128256 * 12
    assert "as the loss is computed" in flat(*words)
    assert "loss=" not in flat(*words)
    other = flat(*words, "--loss", "compiled")
    assert "your code has: " in other
    assert "run.train_step(…, loss=FUNCTION), with a loss that is compiled" in other


def test_scores_are_cut_over_tensor_ranks_without_a_loss_of_ones_own() -> None:
    """A function that is given gets the scores of all words on each rank."""
    model = ("--model", "llama3-8b", "--gpu", "A100-80", "--gpus", "8", "--micro-batch", "8")
    words = (*model, "--parallel", "tensor=8")
    scores = 8 * 8192 * 128256
    assert planned(*words)["memory"]["logits"] == scores / 8 * 10
    assert planned(*words, "--loss", "in-place")["memory"]["logits"] == scores * 6


def test_states_are_sharded_over_ranks_of_one_sequence() -> None:
    """`context` shards weights and optimizer as `shard` does."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "8", "--parallel")
    cut, sharded = (planned(*words, one)["memory"] for one in ("context=8", "shard=8"))
    assert [cut[one] for one in ("weights", "optimizer")] == [
        sharded[one] for one in ("weights", "optimizer")
    ]


def test_only_states_are_known_of_a_number_of_parameters() -> None:
    """What needs the shape is null, not 0, and so is whether it fits, unless states do not."""
    words = ("--model", "parameters=7e9", "--gpu", "A100-80", "--gpus", "8")
    found = planned(*words, "--zero", "3")
    assert found["memory"]["total"]["expected"] == pytest.approx(16 * 7e9 / 8)
    assert found["memory"]["activations"] is None
    assert [found[name] for name in ("step_s", "gpu_hours", "fits")] == [None] * 3
    text = flat(*words, "--zero", "3")
    assert "states fit, and leave 67" in text
    assert "whether activations fit is unknown" in text
    assert planned(*words)["fits"] is False
    assert "DOES NOT FIT" in said(*words)


def test_number_of_parameters_says_how_many_gpus_hold_it() -> None:
    """The sum that everybody does first: 350 GB on 5 GPUs of 80 GB, and 16 bytes on 33."""
    text = flat("--model", "parameters=175e9", "--gpu", "A100-80")
    assert "weights alone are 350 GB in 16 bits, on 5 x A100-80 or more" in text
    assert "all states are 2,800 GB, on 33 or more (--gpus 33 --parallel shard=33)" in text
    for gpus, fits in (("32", False), ("33", None)):
        many = ("--model", "parameters=175e9", "--gpu", "A100-80", "--gpus", gpus)
        assert planned(*many, "--parallel", f"shard={gpus}")["fits"] is fits


def test_plan_says_how_its_layout_is_launched() -> None:
    """The overrides are those of `parallel`; what hpckit cannot run is said, not printed."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16")
    text = flat(*words, "--parallel", "shard=16", "--recompute", "full")
    launch = "parallel=fsdp parallel.params=bf16 parallel.recompute=blocks parallel.compile=true"
    assert f"hpckit launch experiment=YOURS {launch}" in text
    assert "global batch 16 sequences of 8192 tokens" in text
    for more in (
        ("--zero", "3"),
        ("--precision", "bf16-pure", "--parallel", "shard=16"),
        ("--parallel", "shard=8", "pipeline=2", "stages_per_rank=4"),
        ("--parallel", "tensor=16"),
    ):
        text, found = flat(*words, *more), planned(*words, *more)
        assert found["fits"]
        assert found["limits"]
        assert "hpckit cannot run this" in text
        assert "hpckit launch" not in text


def test_plan_that_does_not_fit_says_so_first() -> None:
    """Days and money of what cannot run come with that remark, and no words to launch it."""
    words = ("--model", "llama3-70b", "--gpu", "H100-SXM", "--gpus", "8")
    lines = said(*words).splitlines()
    assert lines[1].startswith("  DOES NOT FIT")
    assert "--search" in lines[1]
    assert lines.index("if it did fit:") < next(
        number for number, line in enumerate(lines) if " days" in line
    )
    assert "hpckit launch" not in "".join(lines)


def test_days_come_with_how_long_published_runs_took() -> None:
    """A prediction is a range of layouts that shard alike; a measured step needs no such remark."""
    found, text = planned(*SHARDED), flat(*SHARDED)
    assert found["days"] * 1.05 < found["days_low"] < found["days_high"] < found["days"] * 1.4
    assert "sharded weights on H100" in found["experience"]
    assert "on H100 took 7 to 30 % more time than predicted" in text
    assert "by experience" in text
    assert "no published step of this layout on this GPU" in flat("--model", "gpt2", *V100)
    assert planned(*SHARDED, "--step-s", "9")["days_low"] is None
    assert "published" not in said(*SHARDED, "--step-s", "9")
    assert "with torch.compile" in text
    assert "with torch.compile" not in flat(*SHARDED, "--kernels", "plain")


def test_v100_is_planned_in_fp16_and_says_so() -> None:
    """It has no bfloat16: without a word it is fp16, which is named; fp32 is slower."""
    assert "fp16: V100 has no bfloat16" in said(*GPT)
    assert planned(*GPT) == planned(*GPT, "--precision", "fp16")
    assert planned(*GPT, "--precision", "fp32")["step_s"] > planned(*GPT)["step_s"]
    assert "bfloat16" not in said("--model", "gpt2", "--gpu", "H200")
    faster = planned("--model", "gpt2", "--gpu", "V100 tflops=112", "--gpus", "8")
    assert any("fp16" in one for one in faster["limits"])


def test_gpu_of_a_site_is_one_of_the_catalogue_with_what_differs() -> None:
    """All that is not said is that GPU's; what published steps took on it says nothing of this."""
    words = ("--model", "llama3-8b", "--gpus", "64", "--parallel", "shard=64")
    usual, own = planned(*words, "--gpu", "A100-80"), planned(*words, "--gpu", OWN)
    assert own["gpu"] == OWN
    assert own["gpu_memory_bytes"] == 64 * 2**30
    assert own["step_s"] > usual["step_s"]
    assert own["step_parts"]["compute"] == usual["step_parts"]["compute"]
    assert "118 published steps" in usual["experience"]
    assert "no published step" in own["experience"]
    assert "resources.tasks_per_node=4" in flat(*words, "--gpu", OWN)


def test_gpu_that_nobody_knows_is_described_whole() -> None:
    """By its own name, with 1.8 times its power for its part of a node unless it says so."""
    whole = (
        "name=X1 memory_gib=96 tflops=500 tflops_fp32=40 memory_gb_per_s=4000 link_gb_per_s=300 "
        "network_gb_per_s=50 power_w=500"
    )
    found = planned("--model", "gpt2", "--gpu", whole, "--gpus", "10")
    assert (found["gpu"], found["power_w"], found["node_w"]) == ("X1", 5000, 9000)
    assert planned("--model", "gpt2", "--gpu", f"{whole} node_w=600")["node_w"] == 600
    assert "no published step of this layout on this GPU" in found["experience"]


def test_power_needs_no_model() -> None:
    """10,000 GPUs of 400 W are 4 MW, and more with nodes and cooling."""
    found = planned("--power", "--gpu", "A100-80", "--gpus", "10000")
    assert found["power_w"] == 4e6
    assert found["power_w"] < found["node_w"] < found["facility_w"]


def test_numbers_that_nobody_chose_are_marked() -> None:
    """A batch of one row per GPU and 20 tokens per parameter are guesses, and named as such."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16", "--parallel", "shard=16")
    text = flat(*words)
    assert "of 8192 tokens (default: set --global-batch and --sequence)" in text
    assert "tokens (default: 20 per parameter)" in text
    assert planned(*words)["defaults"] == ["--global-batch", "--sequence", "--tokens"]
    chosen = ("--global-batch", "32", "--sequence", "4096", "--tokens", "1B")
    assert "default" not in said(*words, *chosen)
    assert planned(*words, *chosen)["defaults"] == []


def test_sequence_of_a_published_model_is_no_longer_than_it_is_trained_with() -> None:
    """Long contexts come at the end of a training; short positions are not exceeded."""
    for model, sequence in (
        *(("gpt2", 1024), ("llama2-7b", 4096), ("llama3-8b", 8192), ("llama3.2-1b", 8192)),
        *(("gpt3-13b", 2048), ("qwen3-8b", 8192), ("mixtral-8x7b", 8192)),
    ):
        assert planned("--model", model, "--gpu", "B200")["layout"]["sequence"] == sequence
    for name, shape in MODELS.items():
        assert choose_sequence_length(shape) <= (shape.positions or shape.max_sequence), name


def test_launch_line_asks_for_the_nodes_and_accumulates_as_the_guide_says() -> None:
    """16 GPUs are 2 nodes of 8; parts of a batch are hpckit's, not further calls of backward."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16", "--global-batch", "512")
    overrides = planned(*words, "--parallel", "shard=16")["overrides"]
    assert overrides[-3:] == ["resources.nodes=2", "resources.tasks_per_node=8", "resources.gpus_per_node=8"]
    assert "parallel.microbatches=32" in overrides
    text = flat(*words, "--parallel", "shard=16")
    assert "run.train_step, which computes them in 32 parts" in text
    assert "backward()" not in text
    assert " CUDA context " in text


@pytest.mark.parametrize("text", ["1e11", "100B", "100b", "0.1T", "100000M"])
def test_tokens_are_counted_in_billions(text: str) -> None:
    """A suffix is as good as an exponent."""
    assert planned(*GPT, "--tokens", text)["tokens"] == pytest.approx(1e11)
