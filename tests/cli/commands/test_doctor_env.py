"""Promises of `hpckit doctor --env` on one machine, and of what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_world import NOW, make_context

from hpckit.errors import RunError, UsageError
from hpckit.model.plain import MASK, to_plain
from hpckit.operations.environment import MOST_BYTES, collect_machine_facts, read_node_facts, write_node_facts
from hpckit.planning.compatibility.judge import list_nccl_and_cuda_variables
from hpckit.record.launches import load_launch
from hpckit.record.store import make_private_folder

LOCAL = ("doctor", "--env", "cluster=local")


def looked(shell: Any, *words: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and document."""
    said = shell(*LOCAL, "--json", *words)
    return said.code, json.loads(said.out)


@pytest.fixture
def small(shell: Any) -> Any:
    """Return a shell in whose Python torch is a module of two lines: its import takes no time."""
    (shell.cwd / "lib" / "torch").mkdir(parents=True)
    fake = "__version__ = '9.9'\nclass version: cuda = ''\n"
    (shell.cwd / "lib" / "torch" / "__init__.py").write_text(fake)
    shell.environ["PYTHONPATH"] = str(shell.cwd / "lib")
    return shell


def test_local_cluster_is_this_machine_alone(small: Any) -> None:
    """There is no other node: facts of this one, nothing launched, nothing left behind."""
    code, said = looked(small)
    assert (code, said["node"], said["clock_offset_s"]) == (0, None, None)
    assert said["works"] is True
    assert said["here"]["torch"]["version"] == "9.9"
    roles = [one["role"] for one in said["here"]["file_systems"]]
    assert roles[0] == "output folder"
    assert small.outputs == []
    text = small(*LOCAL).out
    assert "FACT" in text
    assert "9.9" in text


def test_what_surely_does_not_work_is_exit_code_1(small: Any) -> None:
    """GPUs that this machine does not have, told with the number and what to do."""
    code, said = looked(small, "resources.gpus_per_node=3")
    found = [one for one in said["findings"] if one["fact"] == "GPUs"]
    if said["here"]["driver"]["gpus"] != []:
        pytest.skip("this machine has GPUs, or cannot tell")
    assert code == 1
    assert "resources.gpus_per_node is 3" in found[0]["message"]
    assert small(*LOCAL, "resources.gpus_per_node=3").code == 1


def test_function_needs_torch_and_a_command_does_not(small: Any) -> None:
    """Without torch, what names a function will not work; a command may."""
    (small.cwd / "lib" / "torch" / "__init__.py").write_text("raise ImportError('no libcudart')")
    function = ("experiment=function", "entry_point=train:main")
    assert looked(small, *function)[0] == 1
    code, said = looked(small, "--", "python", "train.py")
    assert code == 0
    (found,) = (one for one in said["findings"] if one["fact"] == "torch")
    assert (found["level"], "no libcudart" in found["message"]) == ("warning", True)


def test_here_asks_nothing_of_slurm(small: Any, fake_slurm: Any) -> None:
    """With --here a login node is not blamed for lacking what compute nodes have."""
    small.environ = {**fake_slurm.environ, "PYTHONPATH": small.environ["PYTHONPATH"]}
    words = ("doctor", "--env", "--here", "cluster=slurm", "resources.gpus_per_node=8", "--json")
    said = small(*words)
    assert said.code == 0, said.err
    assert json.loads(said.out)["node"] is None
    assert "is not compared with this machine" in said.err
    assert small.outputs == []
    assert "not compared" not in small(*words[:3], "cluster=slurm").err


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--here"),
        ("doctor", "one", "two"),
        ("doctor", "--config-name", "x"),
        ("doctor", "--", "python", "x.py"),
        ("doctor", "--env", "--adopt"),
        ("doctor", "--env", "cluster=nowhere"),
        ("doctor", "--env", "cluster=local", "seed=1,2"),
        ("doctor", "--env", "cluster=local", "--"),
    ],
)
def test_words_of_the_other_question_are_refused(shell: Any, words: tuple[str, ...]) -> None:
    """Each refusal is a usage error with what to do, and never a traceback."""
    said = shell(*words)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_output_dir_is_the_folder_that_is_looked_at(small: Any, tmp_path: Path) -> None:
    """Whatever characters it has."""
    odd = tmp_path / "a 'b' ${c} \\d, =e"
    _, said = looked(small, "--output-dir", str(odd))
    assert said["here"]["file_systems"][0]["path"] == str(odd)


def test_secrets_among_the_variables_are_masked() -> None:
    """Values are shown of few variables, and none of those that look like a secret."""
    token = "hf_" + "Ab1" * 10
    environ = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_X": "1",
        "NCCL_AUTH_TOKEN": "abcdefghij",
        "NCCL_NOTE": f"x{token}",
        "HF_TOKEN": token,
        "OMP_NUM_THREADS": "4",
        "PATH": "/bin",
    }
    assert list_nccl_and_cuda_variables(environ) == {
        "NCCL_AUTH_TOKEN": MASK,
        "NCCL_DEBUG": "INFO",
        "NCCL_NOTE": MASK,
        "OMP_NUM_THREADS": "4",
        "TORCH_NCCL_X": "1",
    }


@pytest.fixture
def launch(shell: Any) -> Any:
    """Return a launch that was rendered, with the folder of its run."""
    words = ("experiment=command", "command=[echo]", "cluster=slurm", "code.snapshot=false")
    assert shell("render", *words).code == 0
    found = load_launch(shell.outputs[0])
    make_private_folder(found.paths.run(0).folder)
    return found


def context_of(shell: Any, **more: str) -> Any:
    """Return the context of a process on a node."""
    return make_context(shell.cwd, {**shell.environ, **more}, now=lambda: NOW, sleep=lambda _: None)


def test_node_writes_what_the_other_side_reads(small: Any, launch: Any) -> None:
    """The run's own folder has the facts, and the token of the folder that both see."""
    (launch.folder.parent / f".environment-{launch.id}").write_text("seen")
    where = {"HPCKIT_LAUNCH_DIR": str(launch.folder), "HPCKIT_RUN_INDEX": "0"}
    assert read_node_facts(launch) is None
    write_node_facts(context_of(small, **where))
    facts = read_node_facts(launch)
    assert facts is not None
    assert facts.token == "seen"  # noqa: S105
    assert facts.torch.version == "9.9"
    with pytest.raises(UsageError, match="inside a run only"):
        write_node_facts(context_of(small))


@pytest.mark.parametrize("text", ["{}", "[]", "{", "null", "[" * 100_000, "x" * (MOST_BYTES + 2)])
def test_file_that_holds_no_facts_is_refused(launch: Any, text: str) -> None:
    """Whatever is in it, an error says which file, and nothing else happens."""
    file = launch.paths.run(0).node_facts
    file.write_text(text)
    with pytest.raises(RunError, match=r"node_facts\.json"):
        read_node_facts(launch)


def test_file_of_another_kind_is_refused(launch: Any) -> None:
    """A pipe would block, and wrong types are no facts."""
    file = launch.paths.run(0).node_facts
    os.mkfifo(file)
    with pytest.raises(RunError, match="cannot be read"):
        read_node_facts(launch)
    file.unlink()
    file.write_text(json.dumps({"host": 1}))
    with pytest.raises(RunError, match="host"):
        read_node_facts(launch)


def test_facts_of_this_machine_are_plain_json(small: Any) -> None:
    """All of it is data: no object is lost on the way."""
    where = small.cwd
    facts = collect_machine_facts(
        context_of(small), output=where, project=where, bin_dir=None, token=where / "none"
    )
    assert json.loads(json.dumps(to_plain(facts)))["token"] is None
    assert facts.cpus
    assert facts.memory_bytes
