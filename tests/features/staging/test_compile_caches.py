"""What one node of a run has compiled, the next one does not compile again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thorough
from waiting import until

BEGIN = """
import json, os, subprocess, sys
from pathlib import Path
import hpckit.features.staging.compile_caches as caches
folder, carried, own, saves, look_s, *words = sys.argv[1:]
caches._LOOK_S, caches._RESTED_S = float(look_s), 0.0
environ = dict(os.environ)
node = caches.CompileCaches(folder=Path(folder), carried=Path(carried), owner={})
node.begin(environ, json.loads(own), saves=saves == "1")
sys.exit(subprocess.run(words, env=environ).returncode)
"""
NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
COMPILE = """
import torch
from torch._dynamo.utils import counters
@torch.compile
def f(x):
    return torch.sin(x) + x.cos() * 2
f(torch.ones(100))
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def node(
    tmp_path: Path, name: str, *words: str, saves: bool = True, look_s: float = 60, **own: str
) -> list[str]:
    """Return the words that run a program on a node of this name."""
    places = (str(tmp_path / name), str(tmp_path / "carried"), json.dumps(own))
    return [sys.executable, "-c", BEGIN, *places, str(int(saves)), str(look_s), *words]


def clean() -> dict[str, str]:
    """Return the environment of a node where nobody has set a cache."""
    return {name: value for name, value in os.environ.items() if name not in NAMES}


WRITE = 'echo {text} > "$TRITON_CACHE_DIR/kernel"; echo {text} > "$TORCHINDUCTOR_CACHE_DIR/graph"'
READ = 'cat "$TRITON_CACHE_DIR/kernel" "$TORCHINDUCTOR_CACHE_DIR/graph"'


def test_caches_go_on_to_the_next_node(tmp_path: Path) -> None:
    """Only the node of rank 0 carries its own on; nothing stays on a node."""
    environ = clean()
    subprocess.run(node(tmp_path, "n1", "sh", "-c", WRITE.format(text="one")), env=environ, check=True)
    assert not (tmp_path / "n1").exists()
    words = node(tmp_path, "n2", "sh", "-c", f"{READ}; {WRITE.format(text='two')}", saves=False)
    assert subprocess.check_output(words, env=environ, text=True) == "one\none\n"
    assert not (tmp_path / "n2").exists()
    assert (
        subprocess.check_output(node(tmp_path, "n3", "sh", "-c", READ), env=environ, text=True)
        == "one\none\n"
    )
    assert (tmp_path / "carried").stat().st_mode & 0o777 == 0o600


def test_caches_are_saved_while_a_run_is_running(tmp_path: Path) -> None:
    """A node that is lost has carried on what it had compiled some time before."""
    words = node(tmp_path, "n1", "sh", "-c", f"{WRITE.format(text='one')}; read line", look_s=0.1)
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=clean()) as job:
        until((tmp_path / "carried").exists)
        job.kill()
    assert (
        subprocess.check_output(node(tmp_path, "n2", "sh", "-c", READ), env=clean(), text=True)
        == "one\none\n"
    )


def test_the_users_own_caches_stay_where_they_are(tmp_path: Path) -> None:
    """Set in the shell or for the run; the others are hpckit's."""
    environ = {**clean(), "TRITON_CACHE_DIR": "/mine"}
    words = node(tmp_path, "n1", "sh", "-c", f"echo ${' $'.join(NAMES)}", CUDA_CACHE_PATH="/mine, too")
    assert subprocess.check_output(words, env=environ, text=True) == f"{tmp_path}/n1/inductor /mine\n"


@pytest.mark.parametrize("damage", ["cut", "others"])
def test_carried_caches_that_cannot_be_trusted_are_left_alone(tmp_path: Path, damage: str) -> None:
    """Cut off, or where others could write: the run compiles again, and says nothing."""
    subprocess.run(node(tmp_path, "n1", "sh", "-c", WRITE.format(text="one")), env=clean(), check=True)
    carried = tmp_path / "carried"
    if damage == "cut":
        carried.write_bytes(carried.read_bytes()[:40])
    else:
        carried.chmod(0o666)
    done = subprocess.run(
        node(tmp_path, "n2", "sh", "-c", READ), env=clean(), capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for CPUs with g++")
def test_torch_finds_what_another_node_compiled(tmp_path: Path) -> None:
    """Also where the node's folder has another name."""
    said = [
        subprocess.check_output(node(tmp_path, name, sys.executable, "-c", COMPILE), env=clean(), text=True)
        for name in ("n1", "n2")
    ]
    assert said == ["0 1\n", "1 0\n"]
