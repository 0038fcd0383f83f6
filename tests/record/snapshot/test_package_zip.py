"""hpckit as one file: a Python without anything of ours starts an agent from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpckit.record.snapshot.package_zip import write_package_zip

ASK = """
import traceback, hpckit.runtime.agent.agent as agent
from hpckit.record.snapshot.package_zip import find_own_zip
print(find_own_zip())
try:
    agent.main(["/nowhere", "x", "1"])
except ValueError as error:
    print(traceback.extract_tb(error.__traceback__)[-1].filename)
    print(traceback.extract_tb(error.__traceback__)[-1].line is not None)
"""


def test_agent_comes_from_the_zip_alone(tmp_path: Path) -> None:
    """Without site-packages; and tracebacks name the files in it, with their lines."""
    target = tmp_path / "hpckit.zip"
    write_package_zip(target, target)
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", ASK],
        env={"PYTHONPATH": str(target), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    own, file, has_line = done.stdout.split()
    assert own == str(target)
    assert file == f"{target}/hpckit/runtime/agent/agent.py"
    assert has_line == "True"


def test_the_same_hpckit_gives_the_same_bytes(tmp_path: Path) -> None:
    """For the same place."""
    for name in ("one.zip", "two.zip"):
        write_package_zip(tmp_path / name, tmp_path / "hpckit.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
