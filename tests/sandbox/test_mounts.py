"""Promises of the sandbox's namespaces: one is up in another's machine, and none is seen twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S

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
