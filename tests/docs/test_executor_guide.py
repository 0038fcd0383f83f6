"""The guide to the executor, run as a script of its example's project."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from waiting import run_to_end

pytestmark = pytest.mark.training

DOCS = Path(__file__).parents[2] / "docs"


def test_guide_runs_as_shown(tmp_path: Path) -> None:
    """Its module is the example's; its program submits, waits, sees a failure and finds its jobs again."""
    text = (DOCS / "guides" / "executor.md").read_text()
    module, *cells = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert module == (DOCS / "examples" / "executor" / "estimate.py").read_text()
    shutil.copy(DOCS / "examples" / "executor" / "estimate.py", tmp_path)
    (tmp_path / "program.py").write_text("".join(cells))
    done = run_to_end([sys.executable, "program.py"], cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rpartition(" ")[2][:3] for line in lines[:3]] == ["3.1"] * 3
    assert "exception 2 parts are not enough" in lines
    assert "COMPLETED" in lines[-1]
