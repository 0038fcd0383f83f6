"""An image that costs nothing, a root of 4 KiB whose programs are the host's; and who runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from containers_world import make_cheap_root

HOST = tuple(dict.fromkeys(["/usr", "/opt", sys.prefix, sys.base_prefix, str(Path(__file__).parents[1])]))
"""What the image's programs need of this machine."""

EXEC = """\
#!{python}
import os, sys
words = sys.argv[1:]
if words[:1] == ["--version"]:
    sys.exit(print("apptainer version 0 (a stand-in)"))
with open({log!r}, "a") as log:
    print(*words, sep="\\0", file=log)
place = words.index("exec") + 1
while words[place].startswith("--"):
    place += 2 if words[place] == "--bind" else 1
image, *command = words[place:]
if not os.path.exists(image):
    sys.exit("FATAL: no image " + image)
os.environ.update(PATH=os.defpath, IMAGE=image)
if os.path.exists(image + "/env"):
    os.environ.update(line.split("=", 1) for line in open(image + "/env").read().split())
for name in [name for name in os.environ if name.startswith("APPTAINERENV_")]:
    os.environ[name.removeprefix("APPTAINERENV_")] = os.environ.pop(name)
os.execvp(command[0], command)
"""


def make_image(folder: Path) -> Path:
    """Make the folders and files that a container needs; only `/IMAGE` is its own."""
    make_cheap_root(folder)
    return folder


def pack_image(folder: Path, target: Path) -> Path:
    """Pack an image as a SquashFS file; skips without the program for that."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("there is no mksquashfs: apt-get install squashfs-tools")
    subprocess.run(["mksquashfs", folder, target, "-noappend", "-quiet", "-no-progress"], check=True)
    return target


def stand_in(folder: Path) -> Path:
    """Write a program that starts words as `apptainer exec` does, without a container."""
    program = folder / "apptainer"
    program.write_text(EXEC.format(python=sys.executable, log=str(folder / "started.log")))
    program.chmod(0o755)
    return program


def container_words(program: str | Path, image: Path) -> tuple[str, ...]:
    """Return the words of a launch in an image, with this Python."""
    return (
        "container=apptainer",
        f"container.image={image}",
        f"container.python={sys.executable}",
        f"container.mounts=[{','.join(HOST)}]",
        f"cluster.container_bin={program}",
    )
