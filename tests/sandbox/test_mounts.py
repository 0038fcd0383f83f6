"""Promises of the sandbox's namespaces: one is up in another's machine, and none is seen twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S, run_to_end

SEEN = """
import subprocess, sys
from pathlib import Path
from hpckit.sandbox.process import is_mounted

folder = Path(sys.argv[1])
place = folder / "n1"

def mount(*words):
    subprocess.run(["mount", *words], check=True)

place.touch()
found = [is_mounted(place)]
mount("--bind", "/proc/self/ns/net", str(place))
found.append(is_mounted(place))
mount("-t", "tmpfs", "over", str(folder))
found.append(is_mounted(place))
place.touch()
mount("--bind", "/proc/self/ns/net", str(place))
found.append(is_mounted(place))
print(*found)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_mount_that_another_hides_is_none(tmp_path: Path) -> None:
    """A machine in a machine has the mounts of the outer one in its list, and not in its tree."""
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SEEN]
    done = subprocess.run(
        [*words, str(tmp_path)], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    assert done.stdout.split() == ["False", "True", "False", "True"]


INTERRUPTED = """
import subprocess, sys
from pathlib import Path
from hpckit.sandbox import chroot, settings

settings.CACHE = chroot.CACHE = Path(sys.argv[1])
options = settings.Options(release="24.11")
left = options.chroot_folder.with_suffix(".unfinished") / "proc"
left.mkdir(parents=True)
subprocess.run(["mount", "-t", "proc", "proc", str(left)], check=True)
chroot.make_chroot(options)
print((options.chroot_folder / chroot.MARK).read_text())
"""
DEBOOTSTRAP = """#!/bin/sh
for folder; do case $folder in /*) mkdir -p "$folder/etc" ;; esac; done
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_debian_whose_making_was_ended_is_made_anew(tmp_path: Path) -> None:
    """Also if it was ended by force, with /proc mounted in it."""
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    program.write_text(DEBOOTSTRAP)
    program.chmod(0o755)
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", INTERRUPTED]
    done = run_to_end(
        [*words, str(tmp_path / "cache")],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
    )
    assert (done.returncode, done.stdout.split()) == (0, ["24.11"]), done.stderr
