"""Finds which build of PyTorch this Python has: `torch/version.py` is read, never imported."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

_ACCELERATORS = ("cuda", "hip", "xpu")


def cpu_build(folder: Path | None = None) -> str | None:
    """Return the version of a PyTorch that cannot use GPUs; None if it can, or if it is not known.

    `folder` is that of the package; the default is that of this Python.
    """
    folder = folder or _installed()
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / "version.py").read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values = _constants(tree)
    known = [name for name in _ACCELERATORS if name in values]
    # A version file without CUDA information has an unknown format.
    if "cuda" not in known or any(values[name] is not None for name in known):
        return None
    return str(values.get("__version__") or "unknown version")


def _installed() -> Path | None:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _constants(tree: ast.Module) -> dict[str, object]:
    """Return the constants that a module assigns to names."""
    found: dict[str, object] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign):
            names = [one.id for one in line.targets if isinstance(one, ast.Name)]
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            names = [line.target.id]
        else:
            continue
        if isinstance(line.value, ast.Constant):
            found |= dict.fromkeys(names, line.value.value)
    return found
