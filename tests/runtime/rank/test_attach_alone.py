"""Scripts with `hpckit.attach()` that hpckit did not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thorough

pytestmark = pytest.mark.training

SCRIPT = """
import sys
import torch
import hpckit

kept = None if sys.argv[1] == "none" else sys.argv[1]
run = hpckit.attach(checkpoint_dir=kept)
run.state(model=torch.nn.Linear(2, 1))
print("did", [step for step in run.steps(3)])
"""


def start(folder: Path, kept: str) -> tuple[str, str]:
    """Run the script with plain python; return what it printed, and its log."""
    (folder / "train.py").write_text(SCRIPT)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    words = [sys.executable, "train.py", kept]
    done = subprocess.run(
        words, cwd=folder, env=outside, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.strip(), done.stderr


@thorough
def test_attach_alone_takes_nothing_that_nobody_asked_for(tmp_path: Path) -> None:
    """Started again in the same folder, a script trains all its steps again and leaves nothing."""
    for _ in range(2):
        printed, log = start(tmp_path, "none")
        assert printed == "did [0, 1, 2]"
        assert "state is not kept" in log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_attach_alone_goes_on_from_a_named_folder_and_says_so(tmp_path: Path) -> None:
    """With a folder named, a second start says that nothing is left to do; another starts fresh."""
    assert start(tmp_path, "one")[0] == "did [0, 1, 2]"
    printed, log = start(tmp_path, "one")
    assert printed == "did []"
    assert "nothing is left to do: the restored state is of step=3, of 3 in all" in log
    assert f"what is in {tmp_path / 'one'}; to start fresh, name another folder" in log
    assert start(tmp_path, "two")[0] == "did [0, 1, 2]"
