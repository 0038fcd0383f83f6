"""The guide to the Python door, run as a notebook, by a kernel of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs"


def test_guide_runs_as_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells launch, wait, show tables and curves, and open the launch again; nothing is left out."""
    text = (DOCS / "guides" / "python.md").read_text()
    program, *cells = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert program == (DOCS / "examples" / "python" / "descend.py").read_text()
    shutil.copy(DOCS / "examples" / "python" / "descend.py", tmp_path)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    v4: Any = nbformat.v4  # untyped
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [
        {kind: part for output in cell.outputs for kind, part in output.get("data", {}).items()}
        for cell in notebook.cells
    ]
    said = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert shown[0]["text/html"].count("completed") == 4
    assert "0.45" in said[1], "the best rate"
    assert {"image/png", "text/html"} <= shown[1].keys()
    assert "ended at" in said[2]
    assert "descend-" in said[3]
