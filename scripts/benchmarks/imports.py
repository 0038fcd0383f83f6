"""What a shared file system is asked for when the ranks of many nodes import torch.

Python, its environment and its packed form lie on a file system that counts what it is asked for. Each
simulated node has a mount of its own, so nothing is cached when it starts; its ranks share what it caches.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution
from io import StringIO
from pathlib import Path

from benchmarks.commands import run
from hpckit.context import Context
from hpckit.features.staging.environment import FOLDER, find_environment_folders, pack_environment
from hpckit.model.node_setup import PackedEnvironment
from hpckit.model.plain import to_plain

NODES, RANKS, MANY = 4, 2, 1000
_DATA = frozenset({"READ", "RELEASE", "INIT", "DESTROY", "INTERRUPT"})
"""What is no question about a name or a file."""
_OPCODE = re.compile(r"opcode: ([A-Z]+) \(\d+\)")
_IMPORT = "import torch"
_NODE = """
import json, os, subprocess, sys, time
from pathlib import Path
told = json.loads(sys.argv[1])
shared, before = told["shared"], os.stat(told["shared"]).st_dev
log = open(told["log"], "w")
server = subprocess.Popen(["squashfuse_ll", "-d", told["image"], shared], stderr=log, stdout=log)
while os.stat(shared).st_dev == before:
    time.sleep(0.02)
words = [told["python"], "-P"]
if told["packed"] is not None:
    from hpckit.features.staging.environment import Packed
    from hpckit.features.staging.environment_start import NodeEnvironment
    from hpckit.model.node_setup import Data
    file = Path(shared, "environments", told["packed"]["file"])
    packed = Packed(**{**told["packed"], "mtime_ns": file.stat().st_mtime_ns})  # the image has whole seconds
    data, node, launch = Data(margin_gb=0), Path(told["node"]), Path(shared, "launch")
    node.mkdir(mode=0o700)
    environment = NodeEnvironment(packed=packed, launch=launch, folder=node, data=data, owner={})
    words = environment.start(words, {"PATH": os.environ["PATH"]})
ranks = [subprocess.Popen([*words, "-c", told["program"]]) for _ in range(told["ranks"])]
codes = [rank.wait() for rank in ranks]
server.kill()
sys.exit(max(codes))
"""


def bench_imports(folder: Path) -> None:
    """Compare an environment on the shared file system with a packed one."""
    shared = folder / "shared"
    python = make_environment(shared, "torch")
    packed = {how: _pack(python, shared, how) for how in (PackedEnvironment.squashfs, PackedEnvironment.tar)}
    image = folder / "shared.sqsh"
    run(["mksquashfs", str(shared), str(image), "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"])
    ways = {"where it is": None, **{how.value: found for how, found in packed.items()}}
    print(f"`{_IMPORT}` on {NODES} simulated nodes of {RANKS} ranks; requests of one node on average")
    print(f"environment   names and files       ratio       reads   of {MANY} nodes")
    first = 0.0
    for way, found in ways.items():
        counts: Counter[str] = Counter()
        for number in range(NODES):
            counts += _count_requests(folder, shared, image, python, found, f"n{number}")
        asked = sum(count for name, count in counts.items() if name not in _DATA) / NODES
        first = first or asked
        reads = counts["READ"] / NODES
        print(f"{way:12} {asked:16,.0f} {first / asked:9,.0f} : 1 {reads:9,.0f} {asked * MANY:15,.0f}")


def make_environment(shared: Path, *packages: str) -> str:
    """Make a Python with packages and what they need in the folder; return its path."""
    base, library = Path(sys.base_prefix), "lib/python{}.{}".format(*sys.version_info[:2])
    left_out = shutil.ignore_patterns("test", "site-packages", "__pycache__", "*.a", "share", "include")
    shutil.copytree(base, shared / "python", symlinks=True, ignore=left_out)
    (shared / "python" / library / "site-packages").mkdir()
    name = "python{}.{}".format(*sys.version_info[:2])
    run([str(shared / "python" / "bin" / name), "-m", "venv", "--without-pip", str(shared / "venv")])
    site = shared / "venv" / library / "site-packages"
    seen: set[str] = set()
    for found in (found for name in packages for found in _list_needed(name, seen)):
        for file in found.files or ():
            source, target = Path(str(file.locate())), site / file
            if ".." not in file.parts and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    return str(shared / "venv" / "bin" / "python")


def _list_needed(name: str, seen: set[str]) -> Iterator[Distribution]:
    """Yield a distribution and all that it needs here."""
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except ModuleNotFoundError:
        return
    yield found
    for words in found.requires or ():
        if "extra ==" not in words:
            yield from _list_needed(re.split(r"[^\w.-]", words)[0], seen)


def _pack(python: str, shared: Path, how: PackedEnvironment) -> dict[str, object]:
    context = Context(
        environ=dict(os.environ),
        cwd=shared,
        stdout=StringIO(),
        stderr=StringIO(),
        now=lambda: datetime.now(UTC),
        sleep=lambda _: None,
    )
    packed = pack_environment(find_environment_folders(python, context.environ), shared, how, context)
    print(
        f"packed as {packed.file.partition('.')[2]}: {packed.unpacked_bytes / 1e6:,.0f} MB became "
        f"{packed.size_bytes / 1e6:,.0f} MB in {packed.seconds:.0f} s ({FOLDER})"
    )
    plain: dict[str, object] = to_plain(packed)
    return plain


def _count_requests(
    folder: Path, shared: Path, image: Path, python: str, packed: dict[str, object] | None, node: str
) -> Counter[str]:
    """Return how often a node's mount was asked for what."""
    log = folder / f"{node}.log"
    told = {
        "shared": str(shared),
        "image": str(image),
        "log": str(log),
        "python": python,
        "packed": packed,
        "node": str(folder / node),
        "ranks": RANKS,
        "program": _IMPORT,
    }
    alone = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *alone, "--mount", sys.executable, "-c", _NODE, json.dumps(told)]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return Counter(_OPCODE.findall(log.read_text(errors="replace")))
