"""What `hpckit plan` refuses: one error that names the word, and what is allowed or meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from features.capacity.planned import LLAMA_CONFIG, SMALL, context, planned, refused, said

from hpckit.cli.main import main
from hpckit.errors import HpckitError

pytestmark = pytest.mark.whole

V100 = ("--gpu", "V100")
GPT = ("--model", "gpt2", *V100)
EIGHT = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "8", "--search")
STATES = ("--model", "parameters=7e9", "--gpu", "A100-80")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--model", "gpt5", *V100), "'gpt5' is not known"),
        (("--model", "gpt2", "--gpu", "RTX"), "not in the catalogue"),
        (V100, "--model is missing"),
        (("--model", "no/such.json", *V100), "cannot be read"),
        (("--model", "no\0/such.json", *V100), "is not a path"),
        (("--model", "hidden=4 layers=x heads=2", *V100), "layers='x'"),
        (("--model", f"hidden={'9' * 5000} layers=1 heads=2", *V100), "hidden="),
        (("--model", "hidden=4 layers=1", *V100), "heads is missing"),
        (("--model", "parameters=many", *V100), "parameters=many is not a count"),
        ((*GPT, "--gpus", "0"), "--gpus 0"),
        ((*GPT, "--gpus", "8", "--parallel", "tensor=x"), "tensor=x is not a valid size"),
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
        ((*GPT, "--step-s", "0.001"), " s for this step"),
        ((*GPT, "--step-s", "2", "--search"), "predicts the step"),
        ((*GPT, "--pue", "nan"), "--pue nan"),
        ((*GPT, "--pue", "0"), "--pue 0"),
        ((*GPT, "--pue", "-3"), "--pue -3"),
        ((*V100, "--power", "--pue", "0.5"), "--pue 0.5"),
        ((*GPT, "--price-per-gpu-hour", "-3"), "--price-per-gpu-hour -3"),
        ((*GPT, "--price-per-gpu-hour", "nan"), "--price-per-gpu-hour nan"),
        ((*GPT, "--carbon-g-per-kwh", "-4"), "--carbon-g-per-kwh -4"),
        ((*GPT, "--power-cap-w", "nan"), "a power cap of nan W"),
        ((*GPT, "--precision", "bf16"), "V100 cannot use bf16"),
        (("--model", "parameters=1e9", *V100, "--precision", "bf16-pure"), "V100 cannot use bf16-pure"),
        ((*GPT, "--sequence", "0"), "--sequence 0"),
        ((*GPT, "--global-batch", "0"), "--global-batch 0"),
        ((*GPT, "--micro-batch", "0"), "--micro-batch 0"),
        ((*GPT, "--micro-batch", "9" * 400), "--micro-batch 99"),
        ((*GPT, "--vocab", "0"), "--vocab 0"),
        ((*GPT, "--tokens", "0"), "--tokens 0"),
        ((*GPT, "--tokens", "1e300"), "--tokens 1e300"),
        ((*GPT, "--tokens", "100 billion"), "--tokens 100 billion is not a count"),
        (("--model", "gpt2", "--gpu", "H100"), "did you mean H100-SXM or H100-PCIe?"),
        (("--model", "llama-3-8b", "--gpu", "V100"), "did you mean llama3-8b?"),
        (("--model", "gpt2", "--gpu", "V100", "--parallel", "fsdp"), "an override of `launch`"),
        (("--power", *SMALL[2:], "--search"), "--search does not go with --power"),
        (("--power", *SMALL[2:], "--tokens", "1B"), "--tokens does not go with --power"),
        (("--power", *SMALL[2:], "--price-per-gpu-hour", "2"), "does not go with --power"),
        (("--power", *SMALL[2:], "--from", "RUN"), "--from does not go with --power"),
        (("--power", *SMALL), "--model does not go with --power"),
        ((*SMALL, "--gpu", "H200"), "--gpu is given twice, as A100-80 and H200"),
        ((*SMALL, "--model", "gpt2-xl"), "--model is given twice"),
        ((*SMALL, "--gpus", "8", "--parallel", "stages_per_rank=2"), "there is none"),
        ((*SMALL, "--node-w-per-gpu", "100"), "A100-80 alone takes 400 W"),
        (("experiment=charlm", "resources.nodes=2", *SMALL[2:], "--gpus", "8"), "both say"),
        (("experiment=charlm", *SMALL[2:], "--price-per-gpu-hour", "2"), "the time is not"),
        (("experiment=charlm", *SMALL[2:], "--gpus", "100000"), "8192 GPUs at most"),
        ((*SMALL, "--tokens", "300", "B"), "--tokens 300B"),
        (("--model", "hidden=64", "layers=2", *SMALL[2:]), "--model 'hidden=64 layers=2'"),
        ((*SMALL, "--gpus", "8", "--global-batch", "7"), "--global-batch 8"),
        ((*SMALL, "--gpus", "9", "--parallel", "tensor=9"), "such as 6 or 12"),
        ((*SMALL, "--parallel", "dp=8"), "did you mean replicate=8 (whole copies) or shard=8"),
        ((*SMALL, "--parallel", "data=8"), "shard=8 (of one copy, as FSDP does)"),
        ((*SMALL, "--parallel", "shrad=8"), "did you mean shard=8?"),
        ((*SMALL, "--parallel", "tp=8"), "did you mean tensor=8?"),
        ((*SMALL, "--parallel", "shard", "8"), "--parallel shard=8"),
        (("--model", "7B", *SMALL[2:]), "--model parameters=7B"),
        (("--model", "meta-llama/Llama-2-7b-hf", *SMALL[2:]), "did you mean llama2-7b"),
        (("--model", "meta-llama/Llama-2-7b-hf", *SMALL[2:]), "config.json of it"),
        (("llama3-8b", "--gpu", "A100-80"), "hpckit plan --model llama3-8b"),
        (("--gpu", "A30 memory_gib=24", "--model", "gpt2"), "for another one give memory_gib, tflops"),
        (("--gpu", "A100-80", "--model", "llama3-8b layers=16"), "takes no numbers"),
        (("cluster=lab", "lr=3", *SMALL), "--model does not go with lr=3"),
        ((*SMALL, "--parallel", "shard=1", "resources.nodes=4"), "stand before options"),
        (("memory_gib=64", *SMALL), "--gpu 'A100-80 memory_gib=64'"),
        ((*SMALL, "--gpus", "1e4"), "--gpus is 1e4; it takes a whole number of GPUs in digits"),
        ((*SMALL, "--gpus", "10,000"), "--gpus is 10,000; it takes a whole number of GPUs in digits"),
        ((*SMALL, "--global-batch", "4M"), "whole number of sequences in digits, such as 1024"),
        ((*SMALL, "--sequence", "8k"), "whole number of tokens in digits, such as 8192"),
        ((*SMALL, "--recompute", "blocks"), "here that is full"),
        ((*STATES, "--price-per-gpu-hour", "2"), "--price-per-gpu-hour cannot go with"),
        ((*STATES, "--tokens", "1B"), "--tokens cannot go with"),
        ((*STATES, "--global-batch", "8"), "--global-batch cannot go with"),
        (("--model", "parameters=7.5e9 hidden=4096", *SMALL[2:]), "parameters stands alone"),
        ((*EIGHT, "--parallel", "tensor=3"), "multiples of 3, and there are 8"),
        ((*EIGHT, "--global-batch", "7", "--micro-batch", "2"), "cannot be shared out"),
        (("--model", "gpt2", *EIGHT[2:], "--parallel", "tensor=8"), "does not divide the 12 heads"),
        ((*EIGHT[:5], "64", "--search", "--parallel", "pipeline=64"), "the 32 layers"),
        (("experiment=charlm", *SMALL[2:], "--gpus", "16", "--zero", "0"), "--zero"),
        (("experiment=charlm", *SMALL[2:], "--gpus", "16", "--zero", "1"), "--zero"),
    ],
)
def test_plan_refuses_what_it_does_not_understand(words: tuple[str, ...], error: str) -> None:
    """Nothing that was typed is left out silently; a number is asked for with its unit."""
    assert error in refused(*words)


@pytest.mark.parametrize(
    ("gpu", "error"),
    [
        ("", "GPU '' is not in the catalogue"),
        ("A100-80 memory=80", "'memory=80' is not a known number of a GPU"),
        ("A100-80 memory_gib=80 memory_gib=40", "memory_gib is given twice"),
        ("A100-80 memory_gib=80GB", "memory_gib='80GB' must be a number above 0"),
        ("A100-80 memory_gib=0", "memory_gib='0' must be a number above 0"),
        ("A100-80 memory_gib=1e99", "memory_gib='1e99' must be a number above 0"),
        ("A100-80 memory_gib", "'memory_gib' is not a known number of a GPU"),
        ("A100-80 gpus_per_link=0", "gpus_per_link='0' must be a whole number"),
        ("A100-80 gpus_per_link=²", "gpus_per_link='²' must be a whole number"),
        ("A100-80 node_w=100", "node_w=100 is less than power_w=400"),
        ("A100-80 name=a/b", "name='a/b' is not a name"),
        ("memory_gib=80 power_w=300", "link_gb_per_s, network_gb_per_s are missing"),
        ("A101 memory_gib=80", "GPU 'A101' is not in the catalogue"),
    ],
)
def test_gpu_that_cannot_be_is_refused(gpu: str, error: str) -> None:
    """One error that names the word, with what is allowed."""
    assert error in refused("--model", "gpt2", "--gpu", gpu)


def test_step_at_the_shortest_that_is_named_is_taken() -> None:
    """What the error calls possible is: no utilisation above the peak is ever printed."""
    with pytest.raises(HpckitError) as refused:
        said(*GPT, "--step-s", "0.001")
    shortest = float(refused.value.message.split(" need ")[1].split()[0])
    assert planned(*GPT, "--step-s", str(1.01 * shortest))["hfu"] < 1.2
    with pytest.raises(HpckitError):
        said(*GPT, "--step-s", str(0.98 * shortest))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (" " * 4_000_001, "larger than 4 MB"),
        ("[]", "not a JSON object"),
        ("\xff", "not JSON"),
        (f'{{"model_type":"gpt2","n_embd":{"9" * 4000}}}', "n_layer is missing"),
        (
            json.dumps(LLAMA_CONFIG).replace("num_key_value_heads", "num_key_value_head"),
            "num_key_value_head is not a key of a config.json: did you mean num_key_value_heads?",
        ),
        (json.dumps(LLAMA_CONFIG).replace("model_type", "kind"), "has no model_type"),
        ('{"model_type": "llama",\n "hidden_size": }', "not JSON: line 2, column 17"),
        (json.dumps(LLAMA_CONFIG).replace("vocab_size", "words"), "vocab_size is missing"),
        (
            json.dumps(LLAMA_CONFIG | {"tie_word_embeddings": "false"}),
            "tie_word_embeddings='false' is neither true nor false",
        ),
        (json.dumps(LLAMA_CONFIG | {"model_type": "x" * 1_000_000}), "is not known"),
        (json.dumps(LLAMA_CONFIG | {"hidden_size": "9" * 1_000_000}), "is not a whole number"),
    ],
)
def test_configuration_of_a_model_that_is_wrong_is_one_short_error(
    tmp_path: Path, text: str, error: str
) -> None:
    """Depth, size and encoding of a file of others lead to no traceback, and a slip to its place.

    A key that is misspelt would be left out silently; no error is as long as a file.
    """
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    found = refused("--model", "config.json", *SMALL[2:], folder=tmp_path)
    assert error in found
    assert len(found) < 400


def test_model_that_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer, a device and a folder are refused at once."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(HpckitError, match="cannot be read") as refused:
            said("--model", f"{path}", *V100)
        assert refused.value.hint


@pytest.mark.parametrize(
    ("verb", "words", "meant"),
    [
        ("plan", ("--gpu-count", "8"), "did you mean --gpus?"),
        ("plan", ("--num-gpus", "8"), "did you mean --gpus?"),
        ("plan", ("--batch-size", "8"), "did you mean --global-batch or --micro-batch?"),
        ("plan", ("--seq-len", "8"), "did you mean --sequence?"),
        ("plan", ("--colour", "8"), "`hpckit plan --help` lists the options"),
        ("bench", ("--colour", "8"), "`hpckit bench --help` lists the options"),
    ],
)
def test_unknown_option_of_a_verb_without_a_command_proposes_none(
    verb: str, words: tuple[str, ...], meant: str
) -> None:
    """`-- python train.py` would be no use to it."""
    used = context()
    needed = ("--gpu", "A100-80") if verb == "plan" else ()
    assert main([verb, *needed, *words], used) == 2
    note = used.stderr.getvalue()  # type: ignore[attr-defined]
    assert meant in note
    assert "train.py" not in note
