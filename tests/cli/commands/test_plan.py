"""Promises of `hpckit plan`, as a person calls it."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.main import verb_parser
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.features.capacity.presets import MODELS
from hpckit.features.capacity.request import usual_sequence
from hpckit.features.capacity.verb import run
from hpckit.runtime.clock import now

NUMBERS = "hidden=12288 layers=80 heads=96 vocab=51200"
SC21 = (
    *("--gpu", "A100-80", "--gpus", "1536", "--global-batch", "2304", "--micro-batch", "2"),
    *("--parallel", "tensor=8", "pipeline=8", "stages_per_rank=2", "--sequence", "2048"),
)


def said(*words: str) -> str:
    """Return what `hpckit plan` prints."""
    out = io.StringIO()
    context = Context(
        environ={}, cwd=Path.cwd(), stdout=out, stderr=io.StringIO(), now=now, sleep=time.sleep
    )
    assert run(verb_parser("plan").parse_args([*words]), context) == 0
    return out.getvalue()


def flat(*words: str) -> str:
    """Return what `hpckit plan` prints, as one line."""
    return " ".join(said(*words).replace("\\\n", " ").split())


def planned(*words: str) -> dict[str, Any]:
    """Return what `hpckit plan --json` says."""
    found: dict[str, Any] = json.loads(said(*words, "--json"))
    return found


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
    more = planned(
        "--model", "hidden=64 layers=1 heads=1 vocab=100", "--gpu", "V100", "--vocab", "300"
    )
    assert more["parameters"] - few["parameters"] == 200 * 64


def test_model_is_read_from_its_configuration(tmp_path: Path) -> None:
    """A Hugging Face config.json is the preset of the same model."""
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            }
        )
    )
    words = ("--gpu", "H200", "--gpus", "8", "--parallel", "shard=8")
    usual = planned("--model", str(config), *words)
    assert usual == planned("--model", "llama3-8b", *words)
    config.write_text(config.read_text().replace("{", '{"attention_bias": true, ', 1))
    biased = planned("--model", str(config), *words)["parameters"]
    assert biased - usual["parameters"] == 32 * (4096 + 2 * 1024)


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
    """What needs the shape is null, not 0."""
    found = planned(
        "--model", "parameters=7.5e9", "--gpu", "A100-80", "--gpus", "64", "--zero", "3"
    )
    assert found["memory"]["total"]["expected"] == pytest.approx(1.875e9)
    assert found["memory"]["activations"] is None
    assert found["step_s"] is None
    assert found["gpu_hours"] is None


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
    """A prediction says how far off it was; a measured step needs no such remark."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "64", "--parallel", "shard=64")
    assert "on H100 took 7 to 30 % more time than predicted" in flat(*words)
    assert "no published step of this layout on this GPU" in flat("--model", "gpt2", *V100)
    assert "published" not in said(*words, "--step-s", "2")


def test_v100_is_planned_in_fp16_and_says_so() -> None:
    """It has no bfloat16: without a word it is fp16, which is named; fp32 is slower."""
    assert "fp16: V100 has no bfloat16" in said(*GPT)
    assert planned(*GPT) == planned(*GPT, "--precision", "fp16")
    assert planned(*GPT, "--precision", "fp32")["step_s"] > planned(*GPT)["step_s"]
    assert "bfloat16" not in said("--model", "gpt2", "--gpu", "H200")


OWN = "A100-80 network_gb_per_s=6.25 gpus_per_link=4 memory_gib=64"


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


def test_facts_of_the_cluster_are_those_of_its_file(shell: Any) -> None:
    """Its GPU, cap, PUE and price; options win, and the words to launch name the cluster."""
    folder = shell.cwd / "conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "lab.yaml").write_text(
        f"kind: slurm\ngpu: {OWN}\npower_cap_w: 300\npue: 1.4\nprice_per_gpu_hour: 2\n"
    )
    words = ("plan", "cluster=lab", "--model", "llama3-8b", "--gpus", "64", "--recompute", "full")
    found = json.loads(shell(*words, "--json").out)
    assert found["gpu"] == OWN
    assert found["power_w"] == 64 * 300
    assert found["facility_w"] == pytest.approx(1.4 * found["node_w"])
    assert found["cost"] == pytest.approx(2 * found["gpu_hours"])
    assert found["overrides"][0] == "cluster=lab"
    other = json.loads(
        shell(*words, "--gpu", "V100", "--pue", "1.2", "--power-cap-w", "250", "--json").out
    )
    assert (other["gpu"], other["power_w"]) == ("V100", 64 * 250)
    assert other["facility_w"] == pytest.approx(1.2 * other["node_w"])
    missing = shell("plan", "--model", "gpt2")
    assert missing.code == 2
    assert "cluster.gpu is not set" in missing.err


@pytest.mark.parametrize(
    ("gpu", "error"),
    [
        ("", "GPU '' is not in the catalogue"),
        ("A100-80 memory=80", "'memory=80' is no number of a GPU"),
        ("A100-80 memory_gib=80 memory_gib=40", "memory_gib is given twice"),
        ("A100-80 memory_gib=80GB", "memory_gib='80GB' is no number above 0"),
        ("A100-80 memory_gib=0", "memory_gib='0' is no number above 0"),
        ("A100-80 memory_gib=1e99", "memory_gib='1e99' is no number above 0"),
        ("A100-80 memory_gib", "'memory_gib' is no number of a GPU"),
        ("A100-80 gpus_per_link=0", "gpus_per_link='0' is no whole number"),
        ("A100-80 gpus_per_link=²", "gpus_per_link='²' is no whole number"),
        ("A100-80 node_w=100", "node_w=100 is less than power_w=400"),
        ("A100-80 name=a/b", "name='a/b' is no name"),
        ("memory_gib=80 power_w=300", "tflops, tflops_fp32, .* are missing"),
        ("A101 memory_gib=80", "GPU 'A101' is not in the catalogue"),
    ],
)
def test_gpu_that_cannot_be_is_refused(gpu: str, error: str) -> None:
    """One error that names the word, with what is allowed."""
    with pytest.raises(HpckitError, match=error) as refused:
        said("--model", "gpt2", "--gpu", gpu)
    assert refused.value.hint
    assert refused.value.exit_code == 2


def test_power_needs_no_model() -> None:
    """10,000 GPUs of 400 W are 4 MW, and more with nodes and cooling."""
    found = planned("--power", "--gpu", "A100-80", "--gpus", "10000")
    assert found["power_w"] == 4e6
    assert found["power_w"] < found["node_w"] < found["facility_w"]


def test_search_keeps_what_is_given() -> None:
    """Layouts that fit, the fastest first, with the tensor size that was asked for."""
    words = ("--model", "llama3-70b", "--gpu", "H100-SXM", "--gpus", "64", "--global-batch", "64")
    found = planned(*words, "--search", "--parallel", "tensor=8")
    times = [one["step_s"] for one in found["fastest"]]
    assert times == sorted(times)
    assert len(times) > 1
    assert {one["layout"]["tensor"] for one in found["fastest"]} == {8}
    text = said(*words, "--search", "--tokens", "1T")
    assert "layouts fit, with batches of 64 sequences of 8192 tokens" in text
    longer = planned(*words, "--search", "--tokens", "2T")["fastest"][0]["days"]
    assert longer == pytest.approx(
        2 * planned(*words, "--search", "--tokens", "1T")["fastest"][0]["days"]
    )
    assert " days " in text


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
        assert usual_sequence(shape) <= (shape.positions or shape.max_sequence), name


def test_launch_line_asks_for_the_nodes_and_accumulates_as_the_guide_says() -> None:
    """16 GPUs are 2 nodes of 8; parts of a batch are hpckit's, not further calls of backward."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16", "--global-batch", "512")
    overrides = planned(*words, "--parallel", "shard=16")["overrides"]
    assert overrides[-3:] == [
        "resources.nodes=2",
        "resources.tasks_per_node=8",
        "resources.gpus_per_node=8",
    ]
    assert "parallel.microbatches=32" in overrides
    text = flat(*words, "--parallel", "shard=16")
    assert "run.train_step, which computes them in 32 parts" in text
    assert "backward()" not in text
    assert " CUDA context " in text


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--model", "gpt2", "--gpu", "H100"), "did you mean H100-SXM or H100-PCIe?"),
        (("--model", "llama-3-8b", "--gpu", "V100"), "did you mean llama3-8b?"),
        (("--model", "gpt2", "--gpu", "V100", "--parallel", "fsdp"), "a choice of `launch`"),
    ],
)
def test_plan_says_what_was_meant(words: tuple[str, ...], meant: str) -> None:
    """The names that everyone uses are nearly those of the catalogue."""
    with pytest.raises(HpckitError) as refused:
        said(*words)
    assert meant in refused.value.message


V100 = ("--gpu", "V100")
GPT = ("--model", "gpt2", *V100)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--model", "gpt5", *V100), "'gpt5' is not known"),
        (("--model", "gpt2", "--gpu", "RTX"), "not in the catalogue"),
        (V100, "--model is missing"),
        (("--model", "no/such.json", *V100), "cannot be read"),
        (("--model", "no\0/such.json", *V100), "is no path"),
        (("--model", "hidden=4 layers=x heads=2", *V100), "layers='x'"),
        (("--model", f"hidden={'9' * 5000} layers=1 heads=2", *V100), "hidden="),
        (("--model", "hidden=4 layers=1", *V100), "heads is missing"),
        (("--model", "parameters=many", *V100), "parameters=many is no count"),
        ((*GPT, "--gpus", "0"), "--gpus 0"),
        ((*GPT, "--gpus", "8", "--parallel", "tensor=x"), "tensor=x is no size"),
        ((*GPT, "--gpus", "8", "--parallel", "speed=2"), "speed=2"),
        ((*GPT, "--gpus", "8", "--parallel", "sequence=1"), "sequence=1"),
        ((*GPT, "--gpus", "8", "--parallel", "tensor=3"), "in multiples of 3, and there are 8"),
        ((*GPT, "--gpus", "8", "--parallel", "shard=16"), "needs 16 GPUs, and there are 8"),
        ((*GPT, "--gpus", "8", "--parallel", "replicate=2", "shard=2"), "is 4 GPUs"),
        ((*GPT, "--gpus", "8", "--parallel", "tensor=4", "tensor=2"), "tensor twice"),
        ((*GPT, "--gpus", "8", "--parallel", "shard=2", "parallel.shard=4"), "shard twice"),
        ((*GPT, "--gpus", "2", "--zero", "1", "--parallel", "shard=2"), "both shard"),
        ((*GPT, "--step-s", "0"), "--step-s 0"),
        ((*GPT, "--step-s", "nan"), "--step-s nan"),
        ((*GPT, "--step-s", "1e-320"), "--step-s 9.99989e-321"),
        ((*GPT, "--step-s", "0.001"), "need 0.0[0-9]+ s for this step"),
        ((*GPT, "--step-s", "2", "--search"), "predicts the step"),
        ((*GPT, "--pue", "nan"), "--pue nan"),
        ((*GPT, "--pue", "0"), "--pue 0"),
        ((*GPT, "--pue", "-3"), "--pue -3"),
        ((*V100, "--power", "--pue", "0.5"), "--pue 0.5"),
        ((*GPT, "--price-per-gpu-hour", "-3"), "--price-per-gpu-hour -3"),
        ((*GPT, "--price-per-gpu-hour", "nan"), "--price-per-gpu-hour nan"),
        ((*GPT, "--carbon-g-per-kwh", "-4"), "--carbon-g-per-kwh -4"),
        ((*GPT, "--power-cap-w", "nan"), "a power cap of nan W"),
        ((*GPT, "--precision", "bf16"), "V100 has no bf16"),
        (("--model", "parameters=1e9", *V100, "--precision", "bf16-pure"), "V100 has no bf16-pure"),
        ((*GPT, "--sequence", "0"), "--sequence 0"),
        ((*GPT, "--global-batch", "0"), "--global-batch 0"),
        ((*GPT, "--micro-batch", "0"), "--micro-batch 0"),
        ((*GPT, "--micro-batch", "9" * 400), "--micro-batch 99"),
        ((*GPT, "--vocab", "0"), "--vocab 0"),
        ((*GPT, "--tokens", "0"), "--tokens 0"),
        ((*GPT, "--tokens", "1e300"), "--tokens 1e300"),
        ((*GPT, "--tokens", "100 billion"), "--tokens 100 billion is no count"),
    ],
)
def test_plan_refuses_what_it_does_not_understand(words: tuple[str, ...], error: str) -> None:
    """One error that names the word, with what is allowed, and exit code 2."""
    with pytest.raises(HpckitError, match=error) as refused:
        said(*words)
    assert refused.value.hint
    assert refused.value.exit_code == 2


def test_step_at_the_shortest_that_is_named_is_taken() -> None:
    """What the error calls possible is: no utilisation above the peak is ever printed."""
    with pytest.raises(HpckitError) as refused:
        said(*GPT, "--step-s", "0.001")
    shortest = float(refused.value.message.split(" need ")[1].split()[0])
    assert planned(*GPT, "--step-s", str(1.01 * shortest))["hfu"] < 1.2
    with pytest.raises(HpckitError):
        said(*GPT, "--step-s", str(0.98 * shortest))


@pytest.mark.parametrize("text", ["1e11", "100B", "100b", "0.1T", "100000M"])
def test_tokens_are_counted_in_billions(text: str) -> None:
    """A suffix is as good as an exponent."""
    assert planned(*GPT, "--tokens", text)["tokens"] == pytest.approx(1e11)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (" " * 4_000_001, "larger than 4 MB"),
        ("[]", "no JSON object"),
        ("\xff", "no JSON"),
        (f'{{"model_type":"gpt2","n_embd":{"9" * 4000}}}', "n_layer is missing"),
    ],
)
def test_hostile_configuration_of_a_model_is_one_error(
    tmp_path: Path, text: str, error: str
) -> None:
    """Depth, size, encoding and numbers of a file of others lead to no traceback."""
    config = tmp_path / "config.json"
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(HpckitError, match=error) as refused:
        said("--model", str(config), *V100)
    assert refused.value.hint


def test_model_that_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer, a device and a folder are refused at once."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(HpckitError, match="cannot be read") as refused:
            said("--model", f"{path}", *V100)
        assert refused.value.hint
