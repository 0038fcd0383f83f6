"""Promises of `hpckit plan` to a person who knows its page alone: what is said, and to what."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.cli.main import main, verb_parser
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.features.capacity.calibrate import calibrate, like_run
from hpckit.features.capacity.gpus import read_gpu
from hpckit.features.capacity.model_plan import MeasuredRun
from hpckit.features.capacity.model_setup import GpuSpec, NumberType
from hpckit.features.capacity.power import capped
from hpckit.features.capacity.request import CapacityRequest, plan_capacity
from hpckit.features.capacity.units import (
    command_lines,
    day_column,
    energy_text,
    mass_text,
    range_text,
    span_text,
)
from hpckit.features.capacity.verb import run
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.clock import now

pytestmark = pytest.mark.whole

SMALL = ("--model", "gpt2", "--gpu", "A100-80")
LLAMA = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16")
SHARDED = (*LLAMA, "--parallel", "shard=16")
SEARCH = ("--model", "llama3-70b", "--gpu", "H100-SXM", "--gpus", "64", "--search")


def context(folder: Path | None = None) -> Context:
    """Return an invocation whose output is kept."""
    return Context(
        environ={},
        cwd=folder or Path.cwd(),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
        now=now,
        sleep=time.sleep,
    )


def said(*words: str, folder: Path | None = None) -> str:
    """Return what `hpckit plan` prints."""
    used = context(folder)
    assert run(verb_parser("plan").parse_intermixed_args([*words]), used) == 0
    return used.stdout.getvalue()  # type: ignore[attr-defined,no-any-return]


def flat(*words: str, folder: Path | None = None) -> str:
    """Return what is printed as one line, and a command as one that was pasted."""
    return " ".join(said(*words, folder=folder).replace("\\\n", " ").split())


def planned(*words: str, folder: Path | None = None) -> dict[str, Any]:
    """Return what `--json` says."""
    found: dict[str, Any] = json.loads(said(*words, "--json", folder=folder))
    return found


def refused(*words: str, folder: Path | None = None) -> str:
    """Return the error and its hint."""
    with pytest.raises(HpckitError) as error:
        said(*words, folder=folder)
    assert error.value.exit_code == 2
    return f"{error.value.message}; {error.value.hint}"


def test_of_states_alone_nothing_is_said_to_fit() -> None:
    """Activations are unknown: `fits` is null; it is false where states alone are too large."""
    words = ("--model", "parameters=7e9", "--gpu", "A100-80", "--gpus", "8")
    assert planned(*words, "--zero", "3")["fits"] is None
    text = flat(*words, "--zero", "3")
    assert "states fit, and leave 67" in text
    assert "whether activations fit is unknown" in text
    assert planned(*words)["fits"] is False
    assert "DOES NOT FIT" in said(*words)


def test_what_says_nothing_about_states_is_refused() -> None:
    """A price of a time that is not known, or a batch of a shape that is not."""
    words = ("--model", "parameters=7e9", "--gpu", "A100-80")
    for more in (("--price-per-gpu-hour", "2"), ("--tokens", "1B"), ("--global-batch", "8")):
        assert f"{more[0]} says nothing about" in refused(*words, *more)
    both = refused("--model", "parameters=7.5e9 hidden=4096", "--gpu", "A100-80")
    assert "parameters stands alone" in both


def test_days_are_a_range_of_layouts_that_shard_alike() -> None:
    """Megatron's rows say nothing of sharded weights, which took longer on H100."""
    found = planned(*SHARDED)
    assert found["days"] * 1.05 < found["days_low"] < found["days_high"] < found["days"] * 1.4
    assert "sharded weights on H100" in found["experience"]
    assert "by experience" in said(*SHARDED)
    whole = planned(*SMALL, "--gpus", "8", "--parallel", "tensor=4")
    assert "Megatron" in whole["experience"]
    assert planned(*SHARDED, "--step-s", "9")["days_low"] is None
    assert "with torch.compile" in said(*SHARDED)
    assert "with torch.compile" not in said(*SHARDED, "--kernels", "plain")


def test_search_gives_the_whole_plan_of_the_fastest_layout() -> None:
    """With money, energy and power, and with the options that plan that layout again."""
    found = planned(*SEARCH, "--price-per-gpu-hour", "2")
    best = found["best"]
    assert found["fits"] is True
    assert best["cost"] == pytest.approx(2 * best["gpu_hours"])
    assert best["energy_j"] > 0
    assert best["facility_w"] > best["power_w"] > 0
    assert best["layout"] == found["fastest"][0]["layout"]
    again = planned(*SEARCH[:-1], *found["fastest"][0]["options"])
    assert again["layout"] == best["layout"]
    assert again["step_s"] == pytest.approx(best["step_s"])
    text = flat(*SEARCH, "--price-per-gpu-hour", "2")
    for word in (
        "cost ",
        "energy ",
        "GPU hours",
        "power ",
        "the fastest one is planned again by hpckit plan --model",
    ):
        assert word in text


def test_words_that_plan_the_fastest_layout_again_do_so() -> None:
    """As they stand: a user pastes them."""
    text = flat(*SEARCH)
    line = text.partition("the fastest one is planned again by hpckit plan ")[2]
    again, found = planned(*shlex.split(line)), planned(*SEARCH)["best"]
    assert {**again, "defaults": None} == {**found, "defaults": None}


def test_search_without_a_result_says_how_far_off_it_is() -> None:
    """And what would help; it is an answer, not an error."""
    words = ("--model", "llama3-405b", "--gpu", "H100-SXM", "--gpus", "8", "--search")
    found = planned(*words)
    assert (found["found"], found["fits"], found["fastest"], found["best"]) == (0, False, [], None)
    assert found["smallest"]["memory"]["total"]["expected"] > 80 * 2**30
    enough = int(found["help"][0].removeprefix("--gpus ").partition(":")[0])
    fitting = planned(*words[:5], str(enough), "--search", "--recompute", "full")
    assert fitting["fits"] is True
    half = planned(*words[:5], str(enough // 2), "--search", "--recompute", "full")
    assert half["fits"] is False
    text = flat(*words)
    assert "the smallest needs" in text
    assert "--optimizer adam8bit" in text


def test_search_refuses_sizes_that_no_layout_has() -> None:
    """The reason is the size, not the memory."""
    words = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "8", "--search")
    assert "multiples of 3, and there are 8" in refused(*words, "--parallel", "tensor=3")
    odd = ("--model", "gpt2", "--gpu", "H100-SXM", "--gpus", "8", "--search")
    assert "tensor=8 does not divide the 12 heads" in refused(*odd, "--parallel", "tensor=8")
    assert "cannot be shared out" in refused(*words, "--global-batch", "7", "--micro-batch", "2")
    assert "the 32 layers" in refused(*words[:5], "64", "--search", "--parallel", "pipeline=64")


def test_search_takes_sizes_that_it_would_not_try_itself() -> None:
    """A size that is given is searched with."""
    found = planned(*SEARCH, "--parallel", "shard=4")
    assert {one["layout"]["shard"] for one in found["fastest"]} == {4}


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
        (("--gpus", "12", "--parallel", "shard=12"), "12 is no multiple of the 8 GPUs"),
        (("--gpus", "72", "--gpu", "GB200"), "how many GPUs a node has is yours to say"),
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


@pytest.mark.parametrize(
    ("words", "error"),
    [
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
    ],
)
def test_slip_is_refused_with_what_was_meant(words: tuple[str, ...], error: str) -> None:
    """Nothing that was typed is left out silently."""
    assert error in refused(*words)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--gpus", "1e4"), "--gpus is 1e4; it takes a whole number of GPUs in digits"),
        (("--gpus", "10,000"), "--gpus is 10,000; it takes a whole number of GPUs in digits"),
        (("--global-batch", "4M"), "whole number of sequences in digits, such as 1024"),
        (("--sequence", "8k"), "whole number of tokens in digits, such as 8192"),
        (("--recompute", "blocks"), "here that is full"),
    ],
)
def test_number_that_is_none_is_refused_with_its_unit(words: tuple[str, ...], error: str) -> None:
    """And with an example."""
    with pytest.raises(HpckitError) as found:
        verb_parser("plan").parse_intermixed_args([*SMALL, *words])
    assert error in found.value.message


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


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def test_folder_with_a_config_is_the_model(tmp_path: Path) -> None:
    """Also one that is named without a slash; a name's capitals do not matter."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    preset = planned("--model", "Llama3-8B", *SMALL[2:])
    for name in ("mine", "mine/", "mine/config.json", str(tmp_path / "mine")):
        assert planned("--model", name, *SMALL[2:], folder=tmp_path) == preset


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            json.dumps(LLAMA_CONFIG).replace("num_key_value_heads", "num_key_value_head"),
            "num_key_value_head is no key of a config.json: did you mean num_key_value_heads?",
        ),
        (json.dumps(LLAMA_CONFIG).replace("model_type", "kind"), "has no model_type"),
        ('{"model_type": "llama",\n "hidden_size": }', "no JSON: line 2, column 17"),
        (json.dumps(LLAMA_CONFIG).replace("vocab_size", "words"), "vocab_size is missing"),
    ],
)
def test_config_with_a_slip_is_refused_with_its_place(
    tmp_path: Path, text: str, error: str
) -> None:
    """A key that is misspelt would be left out silently."""
    (tmp_path / "config.json").write_text(text)
    assert error in refused("--model", "config.json", *SMALL[2:], folder=tmp_path)


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


def test_command_is_pasted_as_it_stands() -> None:
    """No line is longer than a terminal is wide, and a shell reads the words that were meant."""
    words = ["hpckit", "launch", "note='two  words'", *(f"key{n}=[{n},2]" for n in range(20))]
    lines = command_lines(words)
    assert max(map(len, lines)) <= 80
    command = "\n".join(lines)
    printed = subprocess.check_output(["sh", "-c", f"printf '%s\\n' {command}"], text=True)
    assert printed.splitlines() == words


def test_units_are_those_that_people_read() -> None:
    """No exponents, no fractions of an hour, years beside many days, columns of equal digits."""
    assert [energy_text(3.6e6 * kwh) for kwh in (7.2, 720, 7.2e3, 6.36e7, 1e10)] == [
        *("7.2 kWh", "720 kWh", "7.2 MWh", "63.6 GWh", "10 TWh"),
    ]
    assert [span_text(days) for days in (0.0201, 0.5, 3.67, 256, 3536)] == [
        *("28.9 minutes", "12 hours", "3.67 days", "256 days", "3,536 days (9.7 years)"),
    ]
    assert range_text(0.5, 0.75) == "12 to 18 hours"
    assert range_text(3000, 4000) == "3,000 to 4,000 days (8.2 to 11.0 years)"
    assert day_column([9.5, None, 123.4]) == ["9.50", "", "123.40"]
    assert mass_text(12) == "12 kg"
    assert mass_text(12e3) == "12 t"


def test_zero_is_an_option_like_any_other() -> None:
    """`--zero 0` says as little about an experiment as `--zero 1`."""
    for stage in ("0", "1"):
        with pytest.raises(HpckitError, match="--zero"):
            planned("experiment=charlm", "--gpu", "A100-80", "--gpus", "16", "--zero", stage)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false' is neither true nor false"),
        ({"model_type": "x" * 1_000_000}, "is not known"),
        ({"hidden_size": "9" * 1_000_000}, "is no whole number"),
    ],
)
def test_values_of_a_model_file_are_told_in_short(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    """What is no boolean is none, and no error is as long as a file."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_CONFIG | more))
    with pytest.raises(HpckitError, match=message) as raised:
        planned("--model", str(file), "--gpu", "H200")
    assert len(raised.value.message) < 300


MEASURED = MeasuredRun(
    name="r.0",
    step_s=9.0,
    layout=Layout(shard=64),
    gpu="NVIDIA A100-SXM4-80GB",
    batch=64,
    precision=NumberType.bf16,
    memory_bytes=40 * 2**30,
)


@pytest.mark.parametrize(
    "gpu",
    [
        read_gpu("A100-80"),
        read_gpu("A100-80 network_gb_per_s=1.5 gpus_per_link=4"),
        read_gpu("A100-80 name=ours network_gb_per_s=1.5"),
        capped(read_gpu("A100-80"), 200),
    ],
    ids=["catalogue", "network", "named", "capped"],
)
def test_plan_of_a_runs_own_layout_is_what_it_took(gpu: GpuSpec) -> None:
    """On a site's own GPUs, too: what differs from the catalogue counts once."""
    request = CapacityRequest(gpu=gpu, gpus=64, model="llama3-8b", sequence=8192)
    found = calibrate(request, MEASURED)
    plan = plan_capacity(replace(like_run(request, MEASURED, gpus=None), calibration=found))
    assert plan.time is not None
    assert plan.time.total == pytest.approx(9.0)


def test_v100_with_numbers_of_its_own_has_no_bfloat16() -> None:
    """Its tensor cores do not know it, however fast they are."""
    found = planned("--model", "gpt2", "--gpu", "V100 tflops=112", "--gpus", "8")
    assert any("fp16" in one for one in found["limits"])


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_what_is_computed_again_needs_memory_while_it_is(attention: str) -> None:
    """Selective needs no less than full: both have a layer's scores while they compute it again."""
    shape = "hidden=1024 layers=4 heads=16 positions=16384 vocab=256"
    words = ("--model", shape, "--sequence", "16384", "--gpu", "RTX-4090", "--attention", attention)
    none, some, full = (
        planned(*words, "--recompute", one)["memory"]["activations"]
        for one in ("none", "selective", "full")
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


@pytest.fixture
def site(shell: Any) -> Any:
    """Return a shell in a project with the facts of a cluster of nodes of four."""
    folder = shell.cwd / "conf" / "cluster"
    folder.mkdir(parents=True)
    facts = "kind: slurm\ngpu: A100-80\ngpus_per_node: 4\nprice_per_gpu_hour: 1\n"
    (folder / "lab.yaml").write_text(facts)
    return shell


LAB = ("plan", "cluster=lab", "--model", "llama3-8b", "--gpus", "64", "--recompute", "full")


@pytest.mark.parametrize("more", [("--parallel", "shard=64"), ("--search",)])
def test_line_that_launches_a_plan_fits_the_cluster(site: Any, more: tuple[str, ...]) -> None:
    """Nodes are the cluster's, and its name is in the line, of a search, too."""
    found = json.loads(site(*LAB, *more, "--json").out)
    overrides = (found.get("best") or found)["overrides"]
    assert overrides[0] == "cluster=lab"
    assert "resources.gpus_per_node=4" in overrides
    said = site("launch", "--dry-run", *overrides, "experiment=digits")
    assert said.code == 0, said.err


def test_link_of_more_gpus_than_a_node_has_is_refused(site: Any) -> None:
    """NVLink pairs in a node of four are fine."""
    assert "gpus_per_link=8" in site(*LAB, "--gpu", "A100-80 gpus_per_link=8").err
    found = json.loads(site(*LAB, "--gpu", "A100-80 gpus_per_link=2", "--json").out)
    assert "resources.gpus_per_node=4" in found["overrides"]


def test_prices_of_a_cluster_say_nothing_of_states_alone(site: Any) -> None:
    """Who gave none is not refused for one."""
    said = site("plan", "cluster=lab", "--model", "parameters=7e9", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["cost"] is None


def test_pue_of_a_cluster_counts_as_it_is_set(site: Any) -> None:
    """Also 1; and what cannot be is refused as `launch` does."""
    power = ("plan", "--power", "--gpus", "10", "cluster=lab")
    one, none = (
        json.loads(site(*power, *more, "--json").out) for more in (("cluster.pue=1.0",), ())
    )
    assert one["facility_w"] == one["node_w"]
    assert none["facility_w"] == pytest.approx(1.1 * none["node_w"])
    for word in ("cluster.pue=0.5", "cluster.power_cap_w=-3", "cluster.power_cap_option=time"):
        said = site(*power, word)
        assert said.code == 2
        assert word.partition("=")[0] in said.err
    assert "less 0 W" not in site(*power, "cluster.power_cap_w=900").out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("llama3-8b", "--gpu", "A100-80"), "hpckit plan --model llama3-8b"),
        (
            ("--gpu", "A30 memory_gib=24", "--model", "gpt2"),
            "of another one give memory_gib, tflops",
        ),
        (("--gpu", "A100-80", "--model", "llama3-8b layers=16"), "takes no numbers"),
        (("cluster=lab", "lr=3", *SMALL), "--model does not go with lr=3"),
        ((*SMALL, "--parallel", "shard=1", "resources.nodes=4"), "stand before options"),
        (("memory_gib=64", *SMALL), "--gpu 'A100-80 memory_gib=64'"),
    ],
)
def test_slip_is_named_with_what_was_meant(words: tuple[str, ...], meant: str) -> None:
    """The word that is wrong, and what to write."""
    with pytest.raises(HpckitError) as refused:
        said(*words)
    assert meant in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16", "--zero", "3"),
        ("--model", "hidden=2048 layers=16 heads=16", "--gpu", "A100-80", "--gpus", "8"),
        ("--model", "gpt2", "--gpu", "A100-80 gpus_per_link=4", "--gpus", "8", "--pue", "1.3"),
        (*SEARCH[:-1], "--price-per-gpu-hour", "2", "--carbon-g-per-kwh", "300", "--loss", "plain"),
        (*SEARCH[:-1], "--node-w-per-gpu", "900", "--power-cap-w", "500", "--tokens", "1e12"),
    ],
)
def test_plan_that_is_planned_again_by_the_printed_words_is_the_same(
    words: tuple[str, ...],
) -> None:
    """With every option of the search, quoted once."""
    text = flat(*words, "--search")
    line = text.partition("the fastest one is planned again by hpckit plan ")[2]
    again, found = planned(*shlex.split(line)), planned(*words, "--search")["best"]
    assert {**again, "defaults": None} == {**found, "defaults": None}


def test_secret_among_cluster_words_is_not_printed(site: Any) -> None:
    """Neither in what launches a plan, nor in what plans it again."""
    site.environ["WANDB_API_KEY"] = "sekret-123456"
    more = ("+cluster.env.WANDB_API_KEY=sekret-123456",)
    for form in ((), ("--json",), ("--search",), ("--search", "--json")):
        said = site(*LAB[:2], *more, *LAB[2:], *form)
        assert said.code == 0, said.err
        assert "sekret" not in said.out + said.err


def test_cap_of_a_cluster_that_a_gpu_cannot_have_names_its_key(site: Any) -> None:
    """Nobody gave --power-cap-w."""
    said = site(*LAB, "--gpu", "B200", "cluster.power_cap_w=100")
    assert said.code == 2
    assert "cluster.power_cap_w: a power cap of 100 W" in said.err
