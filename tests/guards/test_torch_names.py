"""A guard over what is used of torch: public names, so that its next release has them, too."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "hpckit"
_DOCUMENTED = {("torch.utils._python_dispatch", "TorchDispatchMode")}
"""Torch's own notes on extending it say to import these."""


def imported() -> Iterator[tuple[str, str]]:
    """Yield module and name of everything that is imported from torch."""
    for file in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                yield from ((str(node.module), alias.name) for alias in node.names)


def test_torch_names_are_public() -> None:
    """No name of ours has an underscore, and those of checkpoints stand in `__all__`."""
    names = set(imported())
    assert ("torch.distributed.checkpoint.filesystem", "FileSystem") in names
    for module, name in sorted(names - _DOCUMENTED):
        assert not any(part.startswith("_") for part in (*module.split("."), name)), (module, name)
        if module.startswith("torch.distributed.checkpoint."):
            listed = getattr(importlib.import_module(module), "__all__", [name])
            assert name in listed, (module, name)
