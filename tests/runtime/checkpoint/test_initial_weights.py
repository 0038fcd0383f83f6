"""Promises of `checkpoint.weights`: a file of weights begins a run in any layout, or is refused."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_worlds import start_ranks
from runtime.checkpoint.layouts import Net
from tiers import thorough
from torch.optim.swa_utils import AveragedModel

from hpckit.errors import HpckitError
from hpckit.record.ownership import PathStatus, explain_untrusted_data
from hpckit.runtime.checkpoint import weights
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import CheckpointError, ForeignFolderError, StateError
from hpckit.runtime.checkpoint.initial_weights import InitialWeights
from hpckit.runtime.checkpoint.manifest import read_manifest
from hpckit.runtime.checkpoint.weights_file import memory_map_weights

pytestmark = pytest.mark.training


def write(path: Path, state: dict[str, torch.Tensor]) -> Path:
    """Write a state as `checkpoint export` would, by the ending of the file."""
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".pt":
        torch.save(state, path)
        return path
    checkpointer = Checkpointer(path.parent / "kept", CheckpointSettings())
    model = torch.nn.Module()
    for name, one in state.items():
        model.register_buffer(name.replace(".", "_"), one)
    checkpointer.save({"model": model}, 1, 1, wait=True)
    checkpointer.close()
    (folder,) = (path.parent / "kept").glob("step-*")
    found = weights.find_model_weights(folder, read_manifest(folder))
    keys = {name: found.keys[name.replace(".", "_")] for name in state}
    with path.open("w+b") as file:
        weights.write_safetensors(replace(found, keys=keys), file)
    return path


@pytest.fixture(name="state")
def state_fixture() -> dict[str, torch.Tensor]:
    """Return the weights of some model."""
    torch.manual_seed(5)
    net = Net()
    for buffer in net.buffers():
        buffer.add_(torch.rand(3))
    return {name: one.detach().clone() for name, one in net.state_dict().items()}


@pytest.mark.parametrize("ranks", [4, pytest.param(3, marks=thorough), 1])
def test_every_layout_begins_with_the_same_bits(
    world: Any, tmp_path: Path, state: dict[str, torch.Tensor], ranks: int
) -> None:
    """Replicas, shards, tensor, stages and their products; a tied weight under one of its names.

    The optimizer begins anew.
    """
    tied = {name: one for name, one in state.items() if name != "head.weight"}
    path = write(tmp_path / "w" / ("model.pt" if ranks == 3 else "model.safetensors"), tied)
    torch.save(state, tmp_path / "state.pt")
    orders = {"weights": str(path), "state": str(tmp_path / "state.pt")}
    for seen in world(ranks, program="weights_program", do="begin_everywhere", **orders):
        assert "error" not in seen, seen
        for name, one in seen["found"].items():
            assert one == {"wrong": [], "left_out": "", "fresh": True}, name


def unfit(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state with a name too few, one too many, and another shape."""
    other = {name: one for name, one in state.items() if name != "blocks.2.up.bias"}
    return other | {"pooler.weight": torch.ones(2), "norm.bias": torch.ones(7)}


def test_weights_that_do_not_fit_are_refused_by_name(
    world: Any, tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """Missing, unexpected and unlike names of all stages, on every rank, and nothing is loaded."""
    path = write(tmp_path / "model.pt", unfit(state))
    orders = {"program": "weights_program", "do": "begin_unfit", "weights": str(path)}
    for seen in world(2, **orders, strict=True):
        assert seen["error"] == "StateError"
        assert "blocks.2.up.bias: not in the file" in seen["message"]
        assert "pooler.weight: not in the model" in seen["message"]
        assert "norm.bias ((7,), not (6,)): of another shape" in seen["message"]
        assert "weights_strict=false" in seen["hint"]
    assert [json.loads(one.read_text()) for one in tmp_path.glob("*/changed-*")] == [[], []]


def begin(tmp_path: Path, state: dict[str, torch.Tensor], **objects: Any) -> None:
    """Load a file of this state into objects of this process."""
    torch.save(state, tmp_path / "file.pt")
    (tmp_path / "file.pt").chmod(0o600)
    checkpointer = Checkpointer(tmp_path / "run", CheckpointSettings())
    try:
        checkpointer.load_initial_weights(objects, InitialWeights(path=tmp_path / "file.pt"))
    finally:
        checkpointer.close()


def test_file_of_a_model_in_ddp_is_that_of_the_model(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    """Its names begin with `module.`; those of a model that has such a part are left alone."""
    net = Net()
    begin(tmp_path, {f"module.{name}": one for name, one in state.items()}, model=net)
    assert all(torch.equal(one, state[name]) for name, one in net.state_dict().items())
    outer = torch.nn.Module()
    outer.module = Net()
    begin(tmp_path, {f"module.{name}": one for name, one in state.items()}, model=outer)
    assert all(torch.equal(one, state[name]) for name, one in outer.module.state_dict().items())
    with pytest.raises(StateError, match="not in the file"):
        begin(tmp_path, {f"part.{name}": one for name, one in state.items()}, model=net)


@pytest.mark.parametrize("exported", [False, True])
def test_average_begins_with_a_file_of_its_model(
    tmp_path: Path, state: dict[str, torch.Tensor], *, exported: bool
) -> None:
    """Registered whole; its number of updates is that of the file, or 0."""
    file = {f"module.{name}": one for name, one in state.items()} if exported else dict(state)
    if exported:
        file["n_averaged"] = torch.tensor(7)
    average = AveragedModel(Net())
    begin(tmp_path, file, average=average)
    assert all(torch.equal(one, state[name]) for name, one in average.module.state_dict().items())
    assert average.n_averaged == (7 if exported else 0)


def test_file_of_one_of_two_models_says_what_it_lacks_of_it(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """Also beside an average of it: that no name with the model's in front fits helps nobody."""
    lost = "blocks.0.down.bias"
    part = {name: one for name, one in state.items() if name != lost}
    with pytest.raises(StateError) as caught:
        begin(tmp_path, part, model=Net(), ema=Net())
    assert f"{lost}: not in the file" in caught.value.message
    assert f"({len(part)} tensors would fit)" in caught.value.message
    assert "weights_strict=false" in (caught.value.hint or "")


def test_two_tensors_for_one_parameter_are_refused(
    world: Any, tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """One of them would be dropped without a word; the same numbers twice are fine."""
    orders = {"program": "weights_program", "do": "begin_unfit", "strict": False}
    same = state | {"head.weight": state["embed.weight"].clone()}
    other = state | {"head.weight": state["embed.weight"] + 1}
    for seen in world(2, **orders, weights=str(write(tmp_path / "same.pt", same))):
        assert "message" not in seen
    for one in tmp_path.glob("*/changed-*"):
        one.unlink()
    for seen in world(2, **orders, weights=str(write(tmp_path / "other.pt", other))):
        assert "embed.weight and head.weight are one parameter in the model" in seen["message"]
        assert "take one out of the file" in seen["hint"]
    assert [json.loads(one.read_text()) for one in tmp_path.glob("*/changed-*")] == [[], []]


def test_complex_numbers_for_real_ones_are_refused(
    world: Any, tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """Their imaginary parts would be dropped."""
    path = write(tmp_path / "model.pt", state | {"norm.bias": state["norm.bias"] * 1j})
    orders = {"program": "weights_program", "do": "begin_unfit", "strict": True}
    for seen in world(2, **orders, weights=str(path)):
        assert "norm.bias (complex64, not float32): of another shape or kind" in seen["message"]


def test_weights_that_fit_in_part_may_be_loaded(
    world: Any, tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """With `weights_strict=false` what fits is loaded; a file of which nothing fits is not."""
    orders = {"program": "weights_program", "do": "begin_unfit", "strict": False}
    path = write(tmp_path / "model.pt", unfit(state))
    for seen in world(2, **orders, weights=str(path)):
        assert seen["tensors"] == len(state) - 2
        assert "pooler.weight" in seen["left_out"]
    strange = write(tmp_path / "strange.pt", {f"other.{name}": one for name, one in state.items()})
    for seen in world(2, **orders, weights=str(strange)):
        assert "none of its tensors fits" in seen["message"]


def test_two_models_have_their_names_before_their_tensors(world: Any, tmp_path: Path) -> None:
    """As `checkpoint export` writes them."""
    values = {"actor": torch.rand(2, 2), "critic": torch.rand(1, 3)}
    state = {f"{name}.weight": one for name, one in values.items()}
    state |= {"actor.bias": torch.rand(2), "critic.bias": torch.rand(1)}
    path = write(tmp_path / "model.pt", state)
    (seen,) = world(1, program="weights_program", do="begin_two_models", weights=str(path))
    assert seen == {name: one.tolist() for name, one in values.items()}


TRAIN = """
import json, sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, sys.argv[4])
import torch
from byte_model import VALUES, LENGTH, ByteModel, plan

import hpckit
from hpckit.model.parallel.layout import Layout

kept, layout, weights = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] or None
run = hpckit.attach(checkpoint_dir=kept)
run.layout = Layout(**layout)
run.checkpoint = replace(run.checkpoint, weights=weights)
run.seed = 3 if weights else 2
model = run.parallelize(ByteModel, plan())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if "--nothing" not in sys.argv:
    run.state(model=model, optimizer=optimizer)
share, found = run.share(4), []
for step in run.steps(2 if "--more" not in sys.argv else 3):
    text = torch.randint(VALUES, (4, LENGTH), generator=torch.Generator().manual_seed(8))
    optimizer.zero_grad()
    rows = text[share.rows]
    loss = run.train_step(model, rows, rows.roll(1, dims=1), share=share)
    optimizer.step()
    found.append([step, float(loss)])
if run.is_main:
    print("found", json.dumps(found))
"""


def train(folder: Path, *options: str, layout: dict[str, int], kept: str, weights: str = "") -> Any:
    """Train in a layout; return the losses by step."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    size = 1
    for one in layout.values():
        size *= one
    tests = str(Path(__file__).parents[2])
    ends = start_ranks(script, size, kept, json.dumps(layout), weights, tests, *options)
    if ends[0].code:
        return ends[0].output
    (line,) = (splitline for splitline in ends[0].output.splitlines() if splitline.startswith("found"))
    return json.loads(line.partition(" ")[2])


@thorough
def test_exported_weights_begin_a_run_in_another_layout(tmp_path: Path) -> None:
    """The first loss is that of the exported model; a checkpoint of one's own comes first."""
    train(tmp_path, layout={"shard": 2}, kept="first")
    (folder,) = (tmp_path / "first").glob("step-00000002.*")
    exported = tmp_path / "model.safetensors"
    with exported.open("w+b") as file:
        weights.write_safetensors(weights.find_model_weights(folder, read_manifest(folder)), file)
    continued = train(tmp_path, "--more", layout={"shard": 2}, kept="first")
    ((step, wanted),) = continued
    assert step == 2
    for name, layout in {"stages": {"pipeline": 2}, "tensor": {"tensor": 2}, "one": {}}.items():
        begun = train(tmp_path, layout=layout, kept=name, weights=str(exported))
        assert begun[0] == [0, pytest.approx(wanted, abs=2e-6)], name
        again = train(tmp_path, "--more", layout=layout, kept=name, weights=str(exported))
        assert [step for step, _ in again] == [2], "its own checkpoint comes first"


def test_weights_that_nothing_takes_are_an_error(tmp_path: Path) -> None:
    """Code that registers no model would train another one than asked for."""
    path = write(tmp_path / "model.pt", {"x": torch.ones(1)})
    said = train(tmp_path, "--nothing", layout={}, kept="k", weights=str(path))
    assert "no model is registered" in said


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.write_text, (Path(self.target), "ran"))


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    """A pickle that would call a function is refused, as torch's file and without torch's zip."""
    mark = tmp_path / "mark"
    torch.save({"x": Evil(str(mark))}, tmp_path / "model.pt")
    (tmp_path / "model.bin").write_bytes(pickle.dumps({"x": Evil(str(mark))}))
    for name in ("model.pt", "model.bin"):
        with pytest.raises(CheckpointError):
            memory_map_weights(tmp_path / name)
    assert not mark.exists()


def test_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    """By its mode, that of a folder above, and its owner; root's files are as good as one's own."""
    path = write(tmp_path / "a" / "model.pt", {"x": torch.ones(1)})
    assert list(memory_map_weights(path)) == ["x"]
    path.chmod(0o664)
    with pytest.raises(ForeignFolderError) as caught:
        memory_map_weights(path)
    assert "can be written by others" in caught.value.message
    path.chmod(0o600)
    path.parent.chmod(0o777)
    with pytest.raises(ForeignFolderError):
        memory_map_weights(path)
    path.parent.chmod(0o700)
    foreign = PathStatus(path="/data/model.pt", uid=4242, mode=0o100644)
    assert explain_untrusted_data(foreign, 1000) is not None
    assert explain_untrusted_data(replace(foreign, uid=0), 1000) is None
    assert explain_untrusted_data(replace(foreign, uid=0, mode=0o100664), 1000) is not None


def test_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """A link of one's own, as model hubs make them in their caches."""
    write(tmp_path / "blob.pt", {"x": torch.ones(1)})
    (tmp_path / "model.pt").symlink_to("blob.pt")
    assert list(memory_map_weights(tmp_path / "model.pt")) == ["x"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"x": torch.ones(1)}}, "'model' is a dict"),
        ({"x": torch.ones(1), "epoch": 3}, "'epoch' is a int"),
        ([torch.ones(1)], "it is a list"),
        ({"x": torch.ones(2).to_sparse()}, "'x' is a Tensor"),
    ],
)
def test_file_of_something_else_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    """What is not names and tensors is said to be what it is."""
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(CheckpointError) as caught:
        memory_map_weights(tmp_path / "model.pt")
    assert words in caught.value.message
    assert "model.state_dict()" in caught.value.hint


def sharded(folder: Path, parts: dict[str, str], **content: torch.Tensor) -> Path:
    """Write tensors in parts, and their index; `parts` leads from names to files."""
    folder.mkdir()
    for part in {*parts.values()}:
        of_part = {name: one for name, one in content.items() if parts.get(name) == part}
        write(folder / f"for-{part}" / part, of_part).rename(folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": parts}))
    return index


def test_weights_in_parts_are_read_by_their_index(tmp_path: Path) -> None:
    """As a large model of Hugging Face comes: the folder, or the index in it, is enough."""
    parts = {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}
    index = sharded(tmp_path / "m", parts, x=torch.ones(2), y=torch.zeros(3))
    for named in (index, index.parent):
        found = memory_map_weights(named)
        assert (found["x"].tolist(), found["y"].tolist()) == ([1.0, 1.0], [0.0, 0.0, 0.0])
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole / "model.safetensors", {"x": torch.ones(1)})
    assert list(memory_map_weights(whole)) == ["x"]
    write(index.parent / "model.safetensors", {"x": torch.ones(1)})
    assert list(memory_map_weights(index.parent)) == ["x"]  # as transformers does
    (index.parent / parts["y"]).chmod(0o664)
    with pytest.raises(ForeignFolderError):
        memory_map_weights(index)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_name_that_no_screen_shows_is_refused(tmp_path: Path, ending: str) -> None:
    """JSON and pickles take half of a character; a message with it could not be printed."""
    file = tmp_path / f"model.{ending}"
    header = b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    if ending == "pt":
        torch.save({"\ud800": torch.ones(1)}, file)
    with pytest.raises(CheckpointError, match="not Unicode text"):
        memory_map_weights(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"weight_map": {"x": "../other/model.safetensors"}}', "safetensors files in the same folder"),
        ('{"weight_map": {"x": "pytorch_model-00001.bin"}}', "safetensors files in the same folder"),
        ('{"weight_map": {"x": 3}}', "safetensors files in the same folder"),
        ('{"weight_map": {"x": "a\\u0000.safetensors"}}', "safetensors files in the same folder"),
        (f'{{"weight_map": {{"x": "{"a" * 255}.safetensors"}}}}', "safetensors files"),
        ('{"weight_map": {"x": "\\ud800.safetensors"}}', "not Unicode text"),
        ('{"weight_map": {"\\ud800": "a.safetensors"}}', "not Unicode text"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": ["x"]}', "no weight_map"),
        ('{"weight_map": ["xy"]}', "no weight_map"),
        ('{"weight_map": 3}', "no weight_map"),
        ("[]", "no weight_map"),
        ("[" * 100_000, "no weight_map"),
        ('{"weight_map": {"z": "a.safetensors"}}', "z is not in a.safetensors"),
    ],
)
def test_index_that_leads_elsewhere_or_nowhere_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """No name in an index leaves its folder, and none is passed over."""
    index = sharded(tmp_path / "m", {"x": "a.safetensors"}, x=torch.ones(1))
    index.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        memory_map_weights(index.parent)
    assert words in caught.value.message


def test_folder_and_missing_file_are_told_apart(tmp_path: Path) -> None:
    """Neither is a traceback of torch's."""
    with pytest.raises(CheckpointError, match="is a folder"):
        memory_map_weights(tmp_path)
    with pytest.raises(FileNotFoundError):
        memory_map_weights(tmp_path / "none.pt")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(("model.pt", "model.safetensors")))
def test_damaged_file_is_an_error_in_words(tmp_path: Path, data: Any, kind: str) -> None:
    """Any bytes changed, or cut off: what is read has shapes and types, or it is refused."""
    path = tmp_path / "whole" / kind
    if not path.exists():
        write(path, {"a.b": torch.rand(3, 2), "c": torch.rand(2).bfloat16(), "n": torch.rand(0)})
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = memory_map_weights(damaged)
    except (HpckitError, OSError):
        return
    assert sum(one.nbytes for one in found.values()) <= sys.maxsize
    for one in found.values():
        one.clone()
