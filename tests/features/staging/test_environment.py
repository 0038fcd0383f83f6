"""A packed environment: made once, the same on every node, whatever happens to the original."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cli_world import verb_said
from small_disk import small_disk
from staged_node import Node, write_random
from waiting import until

from hpckit.context import Context
from hpckit.errors import ConfigError
from hpckit.features.staging.environment import (
    FOLDER,
    EnvironmentFolders,
    Packed,
    find_environment_folders,
    pack_environment,
)
from hpckit.model.node_setup import PackedEnvironment
from hpckit.model.plain import to_plain

ON_NODE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
import hpckit.features.staging.environment_start as start
from hpckit.features.staging.environment import Packed
from hpckit.model.node_setup import Data, KeptData
told = json.loads(sys.argv[1])
if told["without"] == "fuse":
    start.can_mount_images = lambda _: False
if told["without"] == "namespaces":
    def refuse(*_):
        raise OSError("no namespaces")
    start.show_folders_at_paths = refuse
packed = Packed(**told["packed"])
data, folder = Data(keep=KeptData(told["keep"]), margin_gb=told["margin_gb"]), Path(told["folder"])
folder.mkdir(exist_ok=True)
owner = {"launch": told["launch"], "run": 0}
environment = start.NodeEnvironment(
    packed=packed, launch=Path(told["launch"]), folder=folder, data=data, owner=owner
)
environ = dict(os.environ)
try:
    words = environment.start([packed.python, "-I", *told["words"]], environ)
except start.NodeDataError as error:
    sys.exit(f"NodeDataError: {error.cause}: {error}")
sys.exit(subprocess.run(words, env=environ).returncode)
"""
SAY = """
import subprocess, sys, sysconfig, planted
print(planted.VALUE, subprocess.run(sys.argv[1], capture_output=True, text=True).stdout.strip())
"""


@pytest.fixture(name="venv")
def make_environment(tmp_path: Path) -> Path:
    """Return a small virtual environment with a module and a script of its own."""
    venv = tmp_path / "shared" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    plant(venv, "first")
    return venv


def plant(venv: Path, value: str) -> None:
    """Write a module and a script that say this value."""
    (library,) = venv.glob("lib/python*/site-packages")
    (library / "planted.py").write_text(f"VALUE = {value!r}\n")
    script = venv / "bin" / "say"
    script.write_text(f"#!{venv}/bin/python\nimport planted\nprint('script', planted.VALUE)\n")
    script.chmod(0o755)


def pack(venv: Path, outputs: Path, how: PackedEnvironment = PackedEnvironment.auto) -> Packed:
    """Pack this environment, without its base."""
    found = EnvironmentFolders(python=str(venv / "bin" / "python"), version="3", folders={venv.name: venv})
    context = Context(
        environ=dict(os.environ),
        cwd=outputs.parent,
        stdout=StringIO(),
        stderr=StringIO(),
        now=lambda: datetime.now(UTC),
        sleep=lambda _: None,
    )
    return pack_environment(found, outputs, how, context)


def node(
    packed: Packed, outputs: Path, *words: str, keep: str = "job", without: str = "", margin_gb: float = 0
) -> list[Any]:
    """Return the words that start a node's process from the packed environment."""
    told = {
        "packed": to_plain(packed),
        "launch": str(outputs / "launch"),
        "folder": str(outputs.parent / "node"),
        "keep": keep,
        "without": without,
        "margin_gb": margin_gb,
        "words": words,
    }
    return [sys.executable, "-c", ON_NODE, json.dumps(told)]


def test_an_environment_is_packed_once_for_its_content(venv: Path, tmp_path: Path) -> None:
    """Compiled files are no content; any other change is another one."""
    first = pack(venv, tmp_path / "outputs")
    subprocess.run([venv / "bin" / "python", "-c", "import planted"], check=True)
    again = pack(venv, tmp_path / "outputs")
    assert (again.file, again.seconds) == (first.file, 0.0)
    plant(venv, "second one")
    assert pack(venv, tmp_path / "outputs").key != first.key


@pytest.mark.parametrize(
    ("how", "without"),
    [("squashfs", ""), ("squashfs", "fuse"), ("tar", ""), ("tar", "namespaces"), ("squashfs", "namespaces")],
)
def test_a_node_has_what_was_packed_even_if_the_original_is_gone(
    venv: Path, tmp_path: Path, how: str, without: str
) -> None:
    """Modules and scripts alike; nothing else on the node sees another environment."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment(how))
    plant(venv, "changed later")
    script = "say" if without == "namespaces" else str(venv / "bin" / "say")
    words = ["-c", f"import os, sys; os.environ['PATH'] = os.path.dirname(sys.executable); {SAY}", script]
    done = subprocess.run(
        node(packed, tmp_path / "outputs", *words, without=without),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "first script first", done.stderr
    assert "changed later" in subprocess.check_output([venv / "bin" / "say"], text=True)
    assert {path.suffix for path in (tmp_path / "node").iterdir()} <= {".lock", ".mount"}


def test_what_is_kept_is_not_brought_again(venv: Path, tmp_path: Path) -> None:
    """With keep=cache a later job finds it, also without the shared file."""
    packed = pack(venv, tmp_path / "outputs")
    words = node(packed, tmp_path / "outputs", "-c", "import planted; print(planted.VALUE)", keep="cache")
    assert subprocess.check_output(words, text=True) == "first\n"
    (tmp_path / "outputs" / FOLDER / packed.file).unlink()
    assert subprocess.check_output(words, text=True) == "first\n"


@pytest.mark.parametrize("how", ["squashfs", "tar"])
def test_what_was_damaged_on_the_node_is_brought_again(venv: Path, tmp_path: Path, how: str) -> None:
    """Also where no size has changed, as after a crash of the node."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment(how))
    words = node(packed, tmp_path / "outputs", "-c", "import planted; print(planted.VALUE)", keep="cache")
    assert subprocess.check_output(words, text=True) == "first\n"
    for name in (packed.file, "planted.py"):
        for file in (tmp_path / "node").rglob(name):
            file.write_bytes(bytes(file.stat().st_size))
    assert subprocess.check_output(words, text=True) == "first\n"


@pytest.mark.parametrize(("way", "cause"), [("damage", "data_damaged"), ("program", "data_refused")])
def test_a_node_that_cannot_unpack_says_why(venv: Path, tmp_path: Path, way: str, cause: str) -> None:
    """With the cause by which the supervisor knows whether another node may do better."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment.tar)
    file = tmp_path / "outputs" / FOLDER / packed.file
    if way == "damage":
        file.write_bytes(bytes(packed.size_bytes))
        os.utime(file, ns=(packed.mtime_ns, packed.mtime_ns))
    words = node(packed, tmp_path / "outputs", "-c", "pass")
    path = os.environ["PATH"] if way == "damage" else str(Path(sys.executable).parent)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": path})
    assert f"NodeDataError: {cause}" in done.stderr


def test_copies_that_nobody_uses_make_room_for_an_environment(venv: Path, tmp_path: Path) -> None:
    """Where the cache is within its limit, and the disk is full."""
    with (venv / "large").open("wb") as file:
        file.truncate(30 << 20)
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment.tar)
    with small_disk(tmp_path / "node", "60m") as disk:
        other = Node(disk, write_random(tmp_path / "data.bin", 40 << 20))
        copy = other.stage()
        other.close()
        words = node(packed, tmp_path / "outputs", "-c", "print('here')", keep="cache")
        assert subprocess.check_output(words, text=True) == "here\n"
        assert not copy.exists()


def test_environment_stays_until_its_run_has_ended(venv: Path, tmp_path: Path) -> None:
    """A requeue on the same node finds it."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment.tar)
    words = node(packed, tmp_path / "outputs", "-c", "pass")
    launch = tmp_path / "outputs" / "launch"
    launch.mkdir()
    for how in ("copied", "kept"):
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        assert f": {how}, " in done.stderr
    launch.rmdir()  # as if it had been removed: nobody will come
    subprocess.run(words, check=True, capture_output=True)
    assert not [*(tmp_path / "node").glob("environment.*.manifest")]


def test_two_jobs_share_what_one_brought(venv: Path, tmp_path: Path) -> None:
    """The one that ends first leaves it to the other."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment.tar)
    program = "import sys; print('here', flush=True); sys.stdin.read(); import planted; print(planted.VALUE)"
    words = node(packed, tmp_path / "outputs", "-c", program)
    jobs = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "here\n"
    assert [job.communicate("")[0] for job in jobs] == ["first\n", "first\n"]
    assert not list((tmp_path / "node").rglob(packed.key))


def test_a_mounted_environment_outlives_notices_and_ends_with_its_job(
    venv: Path, tmp_path: Path, servers: Callable[[], list[int]]
) -> None:
    """Slurm may send a notice to all processes of a step; ranks would get SIGBUS without their files."""
    packed = pack(venv, tmp_path / "outputs", PackedEnvironment.squashfs)
    program = (
        "import sys; print('here', flush=True); sys.stdin.readline(); import planted;"
        "print(planted.VALUE, flush=True); sys.stdin.readline()"
    )
    words = node(packed, tmp_path / "outputs", "-c", program)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        assert job.stdout.readline() == "here\n"
        (server,) = servers()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(server, number)
        print(file=job.stdin, flush=True)
        assert job.stdout.readline() == "first\n"
        job.kill()
    until(lambda: not servers())


@pytest.fixture(name="servers")
def find_servers(tmp_path: Path) -> Callable[[], list[int]]:
    """Return what lists the processes that serve an image of this test."""

    def list_servers() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_text()
            except OSError:
                continue
            if (
                words.partition("\0")[0].rpartition("/")[2].startswith("squashfuse")
                and str(tmp_path) in words
            ):
                found.append(int(folder.name))
        return found

    return list_servers


def test_the_base_of_an_environment_is_packed_unless_it_is_on_the_nodes_disk(venv: Path) -> None:
    """Without the packages that the environment does not read."""
    found = find_environment_folders(str(venv / "bin" / "python"), os.environ)
    base = Path(sys.base_prefix).resolve()
    assert next(iter(found.folders.values())) == venv.resolve()
    if base.is_relative_to("/usr"):
        assert len(found.folders) == 1
    else:
        assert found.folders[base.name] == base
        assert any(path.name == "site-packages" for path in found.left_out)


def test_the_systems_python_is_refused() -> None:
    """Nodes have it on their own disks."""
    with pytest.raises(ConfigError, match="the system's Python"):
        find_environment_folders("/usr/bin/python3", os.environ)


def test_a_node_without_room_says_so(venv: Path, tmp_path: Path) -> None:
    """Nothing of the environment is left there."""
    words = node(pack(venv, tmp_path / "outputs"), tmp_path / "outputs", "-c", "pass", margin_gb=10**9)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "GiB free" in done.stderr
    assert {path.suffix for path in (tmp_path / "node").iterdir()} == {".lock"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data.environment=tar",), "cluster.node_scratch has no folders"),
        (("data.environment=zip", "data.dir=/x"), "one of none, auto, squashfs, tar"),
        (
            ("data.environment=tar", "data.dir=/x", "container=apptainer", "container.image=IMAGE"),
            "combined with",
        ),
        (("data.environment=tar", "data.dir=/x", "cluster.python=/usr/bin/python3"), "the system's Python"),
        (("data.dir=here",), "is not absolute"),
        (("data.environment_from=uv", "data.dir=/x"), "for the nodes of a cluster"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_packed(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """By `check`, too. Nodes need a folder; this machine builds no environment for itself."""
    (tmp_path / "image").mkdir()
    words = tuple(word.replace("IMAGE", str(tmp_path / "image")) for word in words)
    for verb in ("check", "launch"):
        given = (verb, "cluster=local", "+data=stage", *words, "--", "python", "-c", "pass")
        answer = verb_said(*given, folder=tmp_path, environ=dict(os.environ))
        assert answer.code == 2
        assert said in answer.err
    assert not list((tmp_path / "outputs").glob("*.*"))


def test_runs_without_data_beside_others_have_the_same_environment(tmp_path: Path) -> None:
    """A sweep may turn staging off for some of its runs, but not the environment."""
    words = ("check", "cluster=local", "data=none,stage", "-m")
    for more, code in (((), 0), (("++data.environment=tar",), 2)):
        given = (*words, *more, "--", "python", "-c", "pass")
        answer = verb_said(*given, folder=tmp_path, environ=dict(os.environ))
        assert answer.code == code
    assert "data.environment differs between runs: none, tar" in answer.err
