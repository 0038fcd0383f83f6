"""Promises of `hpckit checkpoint`."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpckit.errors import NotFoundError, UsageError
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import CheckpointError, StateError
from hpckit.runtime.checkpoint.folder import CheckpointFolder


class Net(nn.Module):
    """A tied weight, types of several widths, an empty buffer, a number, and a note."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.narrow = nn.Parameter(torch.randn(3).bfloat16())
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("count", torch.tensor(7))

    def get_extra_state(self) -> str:
        """Return a note."""
        return "a note"

    def set_extra_state(self, state: str) -> None:
        """Take a note."""


def save(folder: Path, *steps: int, **objects: Any) -> None:
    """Save these objects at these steps."""
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=1))
    for step in steps:
        checkpointer.save(objects, step, step * 8, wait=True)
    checkpointer.close()


@pytest.fixture
def net() -> Net:
    """Return a model of random weights."""
    torch.manual_seed(3)
    return Net()


@pytest.fixture
def folder(desk: Any, net: Net) -> Path:
    """Return the checkpoints of a run, of steps 2 and 4."""
    found: Path = desk.freeze().paths.run(0).checkpoints
    save(found, 2, model=net)
    with torch.no_grad():
        net.embed.weight += 1
    save(found, 4, model=net, optimizer=torch.optim.AdamW(net.parameters()))
    return found


def rows(desk: Any, action: str) -> list[dict[str, Any]]:
    """Return what `--json` says."""
    document: dict[str, Any] = json.loads(desk.say("checkpoint", action, "--json").out)
    return list(document["checkpoints"])


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of a step."""
    (found,) = folder.glob(f"step-{step:08d}.*")
    return found


def damage(folder: Path, step: int) -> None:
    """Flip a bit in the tensors of a step; its size stays."""
    file = path_of(folder, step) / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def equal(state: dict[str, torch.Tensor], net: Net) -> bool:
    """Return whether a state is that of the model, without what is no tensor."""
    own = {key: one for key, one in net.state_dict().items() if isinstance(one, torch.Tensor)}
    return state.keys() == own.keys() and all(
        one.dtype == own[key].dtype and torch.equal(one, own[key]) for key, one in state.items()
    )


def read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """Read the file as the format's description says."""
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "BOOL": torch.bool, "I64": torch.int64}
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    assert header.pop("__metadata__") == {"format": "pt"}
    ends = sorted(tuple(one["data_offsets"]) for one in header.values())
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])], "no gaps"
    assert ends[-1][1] == len(body)
    found = {}
    for name, one in header.items():
        start, end = one["data_offsets"]
        dtype = dtypes[one["dtype"]]
        flat = torch.frombuffer(bytearray(body[start:end] or b"\0" * 8), dtype=dtype)
        found[name] = flat[: (end - start) // dtype.itemsize].view(one["shape"])
    return found


def test_checkpoint_ls_tells_what_there_is(desk: Any, folder: Path) -> None:
    """The newest first, with step, size, layout and what is known of it."""
    CheckpointFolder(folder).make_save_folder(5, 1)
    said = [(row["step"], row["state"]) for row in rows(desk, "ls")]
    assert sorted(said) == [(2, "saved"), (4, "saved"), (5, "unfinished")]
    newest = next(row for row in rows(desk, "ls") if row["step"] == 4)
    assert newest["objects"] == ["model", "optimizer"]
    assert newest["layout"] == dict.fromkeys(("replicate", "pipeline", "shard", "context", "tensor"), 1)
    assert newest["bytes"] == sum(one.stat().st_size for one in path_of(folder, 4).glob("[_.]*"))
    text = desk.say("checkpoint", "ls").out
    assert path_of(folder, 4).name in text
    assert text.index(path_of(folder, 4).name) < text.index(path_of(folder, 2).name)


def test_checkpoint_ls_of_a_run_without_any(desk: Any) -> None:
    """A run that has saved nothing has an empty list, and no error."""
    desk.freeze()
    said = desk.say("checkpoint", "ls")
    assert (said.code, said.out.strip()) == (0, "no checkpoints")


def test_checkpoint_verify_finds_a_flipped_bit(desk: Any, folder: Path) -> None:
    """A bit that only a checksum shows makes the exit code 1, and is named."""
    assert desk.say("checkpoint", "verify").code == 0
    damage(folder, 2)
    said = desk.say("checkpoint", "verify")
    assert said.code == 1
    assert f"{path_of(folder, 2).name}: __0_0.distcp has" in said.out
    assert "1 checkpoint as written, 1 damaged" in said.err
    assert {row["step"]: row["state"] for row in rows(desk, "verify")} == {4: "saved", 2: "damaged"}
    assert {row["state"] for row in rows(desk, "ls")} == {"saved"}, "ls reads no tensor"


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_checkpoint_export_has_every_tensor_of_the_model(
    desk: Any, folder: Path, net: Net, tmp_path: Path, name: str
) -> None:
    """The newest by itself: all tensors bit for bit, under all names, and no optimizer."""
    target = tmp_path / "new" / name
    target.parent.mkdir()
    said = desk.say("checkpoint", "export", "-o", str(target))
    assert said.code == 0
    assert "left out _extra_state: not tensors" in said.err
    state = torch.load(target, weights_only=True) if name == "model.pt" else read_safetensors(target)
    assert equal(state, net)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [one.name for one in target.parent.iterdir()] == [name]
    assert folder.exists()


@pytest.mark.skipif(not importlib.util.find_spec("safetensors"), reason="needs safetensors")
def test_checkpoint_export_is_what_safetensors_reads(
    desk: Any, folder: Path, net: Net, tmp_path: Path
) -> None:
    """The library itself reads the file."""
    target = tmp_path / "model.safetensors"
    desk.say("checkpoint", "export", "-o", str(target))
    assert equal(importlib.import_module("safetensors.torch").load_file(target), net)
    assert folder.exists()


def test_checkpoint_export_of_an_older_step(desk: Any, folder: Path, net: Net, tmp_path: Path) -> None:
    """--step chooses; a step that is not there is named, with those that are."""
    target = tmp_path / "model.pt"
    desk.say("checkpoint", "export", "-o", str(target), "--step", "2")
    older = torch.load(target, weights_only=True)["embed.weight"]
    assert torch.equal(older + 1, net.embed.weight)
    with pytest.raises(NotFoundError, match="no complete checkpoint of step 3") as raised:
        desk.say("checkpoint", "export", "-o", str(tmp_path / "other.pt"), "--step", "3")
    assert "step 4, 2" in raised.value.hint
    assert folder.exists()


def test_checkpoint_export_replaces_a_file_only_by_force(desk: Any, folder: Path, tmp_path: Path) -> None:
    """Weights of hours are not lost to a name that was used before."""
    assert folder.exists()
    target = tmp_path / "model.pt"
    target.write_text("old")
    with pytest.raises(UsageError, match="exists already") as refused:
        desk.say("checkpoint", "export", "-o", str(target))
    assert "--force" in refused.value.hint
    assert target.read_text() == "old"
    desk.say("checkpoint", "export", "-o", str(target), "--force")
    assert "embed.weight" in torch.load(target, weights_only=True)


def test_checkpoint_export_refuses_a_damaged_one(desk: Any, folder: Path, tmp_path: Path) -> None:
    """What is damaged is not handed on, and an older file stays."""
    damage(folder, 4)
    target = tmp_path / "model.pt"
    target.write_text("old")
    with pytest.raises(CheckpointError, match="CRC-32"):
        desk.say("checkpoint", "export", "-o", str(target), "--force")
    assert target.read_text() == "old"


@pytest.mark.parametrize("how", ["cut short", "no manifest file"])
def test_checkpoint_export_takes_no_older_one_unasked(
    desk: Any, folder: Path, net: Net, tmp_path: Path, how: str
) -> None:
    """If the newest is damaged, an older model would be taken for it; --step chooses that one."""
    newest = path_of(folder, 4)
    if how == "cut short":
        (file, *_) = newest.glob("*.distcp")
        os.truncate(file, file.stat().st_size // 2)
    else:
        (newest / "manifest.json").unlink()
        (newest / "manifest.json").mkdir()
    target = tmp_path / "model.pt"
    with pytest.raises(CheckpointError, match=r"the newest checkpoint, is damaged: [^\[]*$") as told:
        desk.say("checkpoint", "export", "-o", str(target))
    assert told.value.hint == "--step chooses another one: 2"
    assert not target.exists()
    desk.say("checkpoint", "export", "-o", str(target), "--step", "2")
    assert torch.equal(torch.load(target, weights_only=True)["embed.weight"] + 1, net.embed.weight)


def test_checkpoint_export_of_several_models_keeps_them_apart(desk: Any, tmp_path: Path) -> None:
    """With two models, names begin with the model's."""
    found = desk.freeze().paths.run(0).checkpoints
    save(found, 1, one=nn.Linear(2, 2, bias=False), other=nn.Linear(2, 2, bias=False))
    target = tmp_path / "model.pt"
    desk.say("checkpoint", "export", "-o", str(target))
    assert torch.load(target, weights_only=True).keys() == {"one.weight", "other.weight"}


def test_checkpoint_export_without_a_model_is_refused(desk: Any, tmp_path: Path) -> None:
    """A checkpoint of other objects has nothing to export."""
    found = desk.freeze().paths.run(0).checkpoints
    save(found, 1, optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(StateError, match="has no model, only optimizer"):
        desk.say("checkpoint", "export", "-o", str(tmp_path / "model.pt"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("export",), "needs the file to write"),
        (("export", "-o", "-"), "is not a file here"),
        (("export", "-o", os.devnull), "not a regular file"),
        (("export", "-o", "/"), "is a folder"),
        (("export", "-o", "x.pt", "--json"), "no JSON"),
        (("ls", "-o", "x.pt"), "takes no -o"),
        (("verify", "--step", "2"), "takes no -o, no --step"),
        (("list",), "list"),
    ],
)
def test_checkpoint_refuses(desk: Any, folder: Path, words: tuple[str, ...], why: str) -> None:
    """What cannot be done is said before anything is read or written."""
    with pytest.raises(UsageError, match=why):
        desk.say("checkpoint", *words)
    assert folder.exists()
